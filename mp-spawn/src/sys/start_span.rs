//! Spans of the `tracing` crate, from the start of a process until it is ready. Without the feature
//! `tracing`, the types of this file are empty.
//!
//! Subscribers are code of users: they are called without locks of this crate, and their panics are caught.

#[cfg(feature = "tracing")]
use mp_core::user_code::{UserValue, catch_panic, emit};
#[cfg(feature = "tracing")]
use tracing::{Dispatch, Span, dispatcher, field};

use crate::error::ProcessName;
use crate::start_method::StartMethod;

/// Subscriber and current span of a thread that starts processes. Another thread may launch the processes.
pub(crate) struct SpanContext {
    #[cfg(feature = "tracing")]
    current: Option<UserValue<(Dispatch, Span)>>,
}

impl SpanContext {
    /// Returns the context of the calling thread.
    pub(crate) fn current() -> SpanContext {
        SpanContext {
            #[cfg(feature = "tracing")]
            current: emit(|| UserValue::new((dispatcher::get_default(Dispatch::clone), Span::current()))),
        }
    }

    /// Begins the span of one start.
    pub(crate) fn begin(&self, _who: &ProcessName, _method: StartMethod) -> StartSpan {
        #[cfg(feature = "tracing")]
        let begin = || {
            let (subscriber, parent) = self.current.as_ref().and_then(UserValue::get)?;
            Some(dispatcher::with_default(subscriber, || {
                tracing::info_span!(
                    target: "mp::start",
                    parent: parent,
                    "start",
                    name = _who.name,
                    rank = _who.rank,
                    method = _method.name(),
                    pid = field::Empty,
                    ready = field::Empty,
                )
            }))
        };
        StartSpan {
            #[cfg(feature = "tracing")]
            span: emit(begin).flatten().filter(|span| !span.is_disabled()),
            #[cfg(feature = "tracing")]
            is_ready: false,
        }
    }
}

/// Span of one start. Dropping this value closes the span.
#[derive(Default)]
pub(crate) struct StartSpan {
    #[cfg(feature = "tracing")]
    span: Option<Span>,
    #[cfg(feature = "tracing")]
    is_ready: bool,
}

impl StartSpan {
    /// Returns `true` if a subscriber accepts the span.
    pub(crate) fn is_enabled(&self) -> bool {
        #[cfg(feature = "tracing")]
        return self.span.is_some();
        #[cfg(not(feature = "tracing"))]
        false
    }

    /// Records the process id in the span.
    pub(crate) fn record_pid(&self, _pid: u32) {
        #[cfg(feature = "tracing")]
        if let Some(span) = &self.span {
            _ = emit(|| span.record("pid", _pid).id());
        }
    }

    /// Records that the process is ready. Calls no subscriber.
    pub(crate) fn set_ready(&mut self) {
        #[cfg(feature = "tracing")]
        {
            self.is_ready = true;
        }
    }

    /// Takes the span if the process is ready.
    pub(crate) fn take_ready(&mut self) -> StartSpan {
        #[cfg(feature = "tracing")]
        if self.is_ready {
            return std::mem::take(self);
        }
        StartSpan::default()
    }

    /// Closes the span.
    pub(crate) fn end(self) {}
}

#[cfg(feature = "tracing")]
impl Drop for StartSpan {
    fn drop(&mut self) {
        if let Some(span) = self.span.take() {
            catch_panic(|| span.record("ready", self.is_ready).id());
            catch_panic(|| drop(span));
        }
    }
}
