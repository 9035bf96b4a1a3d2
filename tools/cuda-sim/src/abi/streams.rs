//! Functions of streams and events, and of words that streams write or wait for.

use std::ffi::c_int;

use super::{OutPtr, export, number, put};
use crate::client::host_calls::{self, HostFunction};
use crate::client::{ask, set_capture_mode};
use crate::codes;
use crate::wire::{Call, Value};

/// Returns the bytes of a handle by which other processes open an object.
pub(super) fn handle(value: Value) -> Result<[u8; 64], u32> {
    match value {
        Value::Bytes(bytes) => bytes.try_into().map_err(|_| codes::UNKNOWN),
        _ => Err(codes::UNKNOWN),
    }
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const LAST_CAPTURE_MODE: u32 = 2;

/// `CUipcMemHandle` and `CUipcEventHandle`.
#[repr(C)]
pub(super) struct IpcHandle(pub(super) [u8; 64]);

export! {
    fn cuStreamCreate(stream: OutPtr<'_, u64>, flags: u32) {
        let stream = stream.ok_or(codes::INVALID_VALUE)?;
        stream.write(number(ask(Call::StreamCreate { flags })?)?);
        Ok(())
    }

    fn cuStreamCreateWithPriority(stream: OutPtr<'_, u64>, flags: u32, _priority: c_int) {
        let stream = stream.ok_or(codes::INVALID_VALUE)?;
        stream.write(number(ask(Call::StreamCreate { flags })?)?);
        Ok(())
    }

    fn cuStreamDestroy_v2(stream: u64) {
        ask(Call::StreamDestroy { stream }).map(|_| ())
    }

    fn cuStreamQuery(stream: u64) {
        ask(Call::StreamQuery { stream }).map(|_| ())
    }

    fn cuStreamSynchronize(stream: u64) {
        ask(Call::StreamSynchronize { stream }).map(|_| ())
    }

    fn cuStreamWaitEvent(stream: u64, event: u64, _flags: u32) {
        ask(Call::StreamWaitEvent { stream, event }).map(|_| ())
    }

    fn cuStreamIsCapturing(stream: u64, status: OutPtr<'_, c_int>) {
        let found = number(ask(Call::IsCapturing { stream })?)?;
        put(status, c_int::try_from(found).map_err(|_| codes::UNKNOWN)?)
    }

    fn cuStreamBeginCapture_v2(stream: u64, mode: u32) {
        ask(Call::BeginCapture { stream, mode }).map(|_| ())
    }

    fn cuStreamEndCapture(stream: u64, graph: OutPtr<'_, u64>) {
        let graph = graph.ok_or(codes::INVALID_VALUE)?;
        graph.write(0);
        graph.write(number(ask(Call::EndCapture { stream })?)?);
        Ok(())
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Option<&mut u32>) {
        let mode = mode.filter(|mode| **mode <= LAST_CAPTURE_MODE).ok_or(codes::INVALID_VALUE)?;
        *mode = set_capture_mode(*mode);
        Ok(())
    }

    fn cuGraphDestroy(graph: u64) {
        ask(Call::GraphDestroy { graph }).map(|_| ())
    }

    fn cuStreamGetCtx(stream: u64, context: OutPtr<'_, u64>) {
        put(context, number(ask(Call::StreamContext { stream })?)?)
    }

    fn cuStreamGetId(stream: u64, id: OutPtr<'_, u64>) {
        let context = number(ask(Call::StreamContext { stream })?)?;
        put(id, if stream <= 2 { context } else { stream })
    }

    fn cuStreamWriteValue64_v2(stream: u64, address: u64, value: u64, flags: u32) {
        if flags != 0 {
            return Err(codes::INVALID_VALUE);
        }
        ask(Call::WriteValue { stream, address, value }).map(|_| ())
    }

    fn cuStreamWaitValue64_v2(stream: u64, address: u64, value: u64, flags: u32) {
        ask(Call::WaitValue { stream, address, value, flags }).map(|_| ())
    }

    fn cuLaunchHostFunc(stream: u64, function: Option<HostFunction>, data: u64) {
        let function = function.ok_or(codes::INVALID_VALUE)?;
        host_calls::begin();
        ask(Call::LaunchHost { stream, function: host_calls::address(function), data }).map(|_| ())
    }

    fn cuEventCreate(event: OutPtr<'_, u64>, flags: u32) {
        let event = event.ok_or(codes::INVALID_VALUE)?;
        event.write(number(ask(Call::EventCreate { flags })?)?);
        Ok(())
    }

    fn cuEventRecord(event: u64, stream: u64) {
        ask(Call::EventRecord { event, stream }).map(|_| ())
    }

    fn cuEventRecordWithFlags(event: u64, stream: u64, _flags: u32) {
        ask(Call::EventRecord { event, stream }).map(|_| ())
    }

    fn cuEventQuery(event: u64) {
        ask(Call::EventQuery { event }).map(|_| ())
    }

    fn cuEventSynchronize(event: u64) {
        ask(Call::EventSynchronize { event }).map(|_| ())
    }

    fn cuEventDestroy_v2(event: u64) {
        ask(Call::EventDestroy { event }).map(|_| ())
    }

    fn cuEventElapsedTime(milliseconds: OutPtr<'_, f32>, start: u64, end: u64) {
        let nanoseconds = number(ask(Call::EventElapsed { start, end })?)?;
        put(milliseconds, std::time::Duration::from_nanos(nanoseconds).as_secs_f32() * 1e3)
    }

    fn cuIpcGetEventHandle(to: OutPtr<'_, [u8; 64]>, event: u64) {
        put(to, handle(ask(Call::IpcGetEvent { event })?.0)?)
    }

    fn cuIpcOpenEventHandle(event: OutPtr<'_, u64>, handle: IpcHandle) {
        let event = event.ok_or(codes::INVALID_VALUE)?;
        event.write(number(ask(Call::IpcOpenEvent { handle: handle.0.to_vec() })?)?);
        Ok(())
    }
}
