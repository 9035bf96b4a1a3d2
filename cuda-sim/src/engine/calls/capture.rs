//! Streams that are captured: what they are given meanwhile becomes a graph. No graph is launched here, so it is enough that nothing of
//! it runs, and that calls which would wait for such a stream fail as with the driver.

use crate::codes;
use crate::engine::Engine;
use crate::engine::calls::{Asked, Called, done, number};
use crate::engine::streams::Capture;
use crate::wire::Call;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`, the last one.
const RELAXED: u32 = 2;

impl Engine {
    pub(in crate::engine) fn capture_call(&mut self, asked: &Asked, call: &Call) -> Called {
        match *call {
            Call::BeginCapture { stream: handle, mode } => {
                let stream = self.stream(asked, handle)?;
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
                stream.capture = Some(Capture::Active);
                done()
            }
            Call::EndCapture { stream } => {
                let stream = self.stream(asked, stream)?;
                let stream = self.streams.get_mut(&stream).ok_or(codes::INVALID_HANDLE)?;
                match stream.capture.take() {
                    None => Err(codes::ILLEGAL_STATE),
                    Some(Capture::Invalidated) => Err(codes::STREAM_CAPTURE_INVALIDATED),
                    Some(Capture::Active) => {
                        let graph = self.fresh();
                        self.process(asked.process)?.graphs.insert(graph);
                        number(graph)
                    }
                }
            }
            Call::IsCapturing { stream } => {
                let stream = self.stream(asked, stream)?;
                number(match self.streams[&stream].capture {
                    None => 0,
                    Some(Capture::Active) => 1,
                    Some(Capture::Invalidated) => 2,
                })
            }
            Call::GraphDestroy { graph } => {
                let had = self.process(asked.process)?.graphs.remove(&graph);
                if had { done() } else { Err(codes::INVALID_VALUE) }
            }
            _ => Err(codes::UNKNOWN),
        }
    }

    /// Whether what a stream is given now becomes part of a graph. One whose capture was spoilt takes nothing.
    pub(in crate::engine) fn is_capturing(&self, stream: u64) -> Result<bool, u32> {
        match self.streams.get(&stream).ok_or(codes::INVALID_HANDLE)?.capture {
            None => Ok(false),
            Some(Capture::Active) => Ok(true),
            Some(Capture::Invalidated) => Err(codes::STREAM_CAPTURE_INVALIDATED),
        }
    }

    /// Of calls that wait for a stream, or ask how far it is: a captured one runs nothing, and its capture is spoilt.
    pub(in crate::engine) fn not_in_capture(&mut self, stream: u64) -> Result<(), u32> {
        if self.is_capturing(stream)? {
            self.spoil_capture(stream);
            return Err(codes::STREAM_CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }

    pub(in crate::engine) fn spoil_capture(&mut self, stream: u64) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.capture = Some(Capture::Invalidated);
        }
    }
}
