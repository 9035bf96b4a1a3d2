//! Captures of streams. Work of a captured stream becomes part of a graph. The simulator never launches
//! graphs, so it discards the work. Some calls fail and invalidate captures, like calls of the driver:
//!
//! | call that | fails, and invalidates |
//! |---|---|
//! | waits for a captured stream, or queries it | the capture of that stream, in any mode |
//! | waits for all work of a context (`cuCtxSynchronize`) | all captures of the context, in any mode |
//! | waits for other work, or may wait ([`is_unsafe`]) | captures of mode `GLOBAL`, in any thread; captures of mode `THREAD_LOCAL`, if the calling thread has begun them |
//!
//! A thread may opt out of the last row (`cuThreadExchangeStreamCaptureMode`). All rows were measured on an
//! H200 (driver 580.159).

use crate::codes;
use crate::engine::Engine;
use crate::engine::calls::{CallResult, Caller, done, number};
use crate::engine::streams::Capture;
use crate::wire::Call;

/// `CUstreamCaptureMode`.
const GLOBAL: u32 = 0;
/// Last and most permissive capture mode.
const RELAXED: u32 = 2;

/// Returns `true` for calls that fail during captures unless the calling thread has opted out (last row of
/// the table).
fn is_unsafe(call: &Call) -> bool {
    matches!(
        call,
        Call::StreamQuery { .. }
            | Call::StreamSynchronize { .. }
            | Call::EventQuery { .. }
            | Call::EventSynchronize { .. }
            | Call::Alloc { .. }
            | Call::Free { address: 1.. }
            | Call::HostRegister { .. }
    )
}

impl Engine {
    pub(in crate::engine) fn capture_call(&mut self, caller: &Caller, call: &Call) -> CallResult {
        match *call {
            Call::BeginCapture { stream: handle, mode } => {
                let stream = self.stream(caller, handle)?;
                let stream = self.streams.get_mut(&stream).ok_or(codes::INVALID_HANDLE)?;
                if stream.is_default {
                    return Err(codes::STREAM_CAPTURE_UNSUPPORTED);
                }
                if stream.capture.is_some() {
                    return Err(codes::ILLEGAL_STATE);
                }
                if mode > RELAXED {
                    return Err(codes::INVALID_VALUE);
                }
                stream.capture = Some(Capture { mode, thread: caller.thread, is_spoilt: false });
                done()
            }
            Call::EndCapture { stream } => {
                let stream = self.stream(caller, stream)?;
                let stream = self.streams.get_mut(&stream).ok_or(codes::INVALID_HANDLE)?;
                match stream.capture.take() {
                    None => Err(codes::ILLEGAL_STATE),
                    Some(Capture { is_spoilt: true, .. }) => Err(codes::STREAM_CAPTURE_INVALIDATED),
                    Some(_) => {
                        let graph = self.fresh();
                        self.process(caller.process)?.graphs.insert(graph);
                        number(graph)
                    }
                }
            }
            Call::IsCapturing { stream } => {
                let stream = self.stream(caller, stream)?;
                number(match self.streams[&stream].capture {
                    None => 0,
                    Some(Capture { is_spoilt: false, .. }) => 1,
                    Some(_) => 2,
                })
            }
            Call::GraphDestroy { graph } => {
                let had = self.process(caller.process)?.graphs.remove(&graph);
                if had { done() } else { Err(codes::INVALID_VALUE) }
            }
            _ => Err(codes::UNKNOWN),
        }
    }

    /// Returns `true` if the stream is being captured. Returns an error if its capture is invalidated.
    pub(in crate::engine) fn is_capturing(&self, stream: u64) -> Result<bool, u32> {
        match self.streams.get(&stream).ok_or(codes::INVALID_HANDLE)?.capture {
            None => Ok(false),
            Some(Capture { is_spoilt: false, .. }) => Ok(true),
            Some(_) => Err(codes::STREAM_CAPTURE_INVALIDATED),
        }
    }

    /// Invalidates the captures of the caller's process that forbid this call. Returns an error if a capture
    /// was invalidated.
    pub(in crate::engine) fn invalidate_captures(&mut self, caller: &Caller, call: &Call) -> Result<(), u32> {
        let waits_for_all = matches!(call, Call::ContextSynchronize);
        if !waits_for_all && !is_unsafe(call) {
            return Ok(());
        }
        let forbids = |capture: &Capture| {
            let is_own = capture.thread == caller.thread && capture.mode != RELAXED;
            waits_for_all
                || match caller.capture_mode {
                    GLOBAL => capture.mode == GLOBAL || is_own,
                    RELAXED => false,
                    _ => is_own,
                }
        };
        let ours = self.streams.values_mut().filter(|stream| stream.process == caller.process);
        let captures = ours.filter_map(|stream| stream.capture.as_mut());
        let spoilt = captures.filter(|capture| forbids(capture)).map(|capture| capture.is_spoilt = true);
        if spoilt.count() == 0 { Ok(()) } else { Err(codes::STREAM_CAPTURE_UNSUPPORTED) }
    }

    /// Returns an error if a stream is captured, and invalidates the capture. Called for calls that wait for
    /// a stream or query it.
    pub(in crate::engine) fn not_in_capture(&mut self, stream: u64) -> Result<(), u32> {
        if self.is_capturing(stream)? {
            self.spoil_capture(stream);
            return Err(codes::STREAM_CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }

    pub(in crate::engine) fn spoil_capture(&mut self, stream: u64) {
        if let Some(capture) = self.streams.get_mut(&stream).and_then(|stream| stream.capture.as_mut()) {
            capture.is_spoilt = true;
        }
    }
}
