//! Which calls spoil captures of other streams: of each mode, by the thread that captures, by another one, and by one that says that it knows.

use super::{Handle, Log};

/// `CUstreamCaptureMode`.
const MODES: [&str; 3] = ["global", "local", "relaxed"];
const RELAXED: i32 = 2;

type Begin = unsafe extern "C" fn(Handle, u32) -> u32;
type End = unsafe extern "C" fn(Handle, *mut Handle) -> u32;
type Destroy = unsafe extern "C" fn(Handle) -> u32;

/// The driver's functions of graphs, which `mp-cuda` doesn't call.
pub(super) struct Graphs {
    begin: Begin,
    end: End,
    destroy: Destroy,
}

impl Graphs {
    pub(super) fn load(library: &libloading::Library) -> Self {
        // SAFETY: the driver's function of this name has this type.
        let begin = unsafe { library.get::<Begin>(b"cuStreamBeginCapture_v2") };
        // SAFETY: likewise.
        let end = unsafe { library.get::<End>(b"cuStreamEndCapture") };
        // SAFETY: likewise.
        let destroy = unsafe { library.get::<Destroy>(b"cuGraphDestroy") };
        Self { begin: *begin.unwrap(), end: *end.unwrap(), destroy: *destroy.unwrap() }
    }
}

/// What a call is made with.
#[derive(Clone, Copy)]
struct With {
    other: Handle,
    event: Handle,
    memory: u64,
    page: Handle,
}

type Call = fn(&Log, With) -> u32;

const CALLS: [(&str, Call); 8] = [
    ("cuStreamQuery of another stream", |me, with| cu!(me.cuStreamQuery(with.other))),
    ("cuStreamSynchronize of another stream", |me, with| cu!(me.cuStreamSynchronize(with.other))),
    ("cuEventRecord on another stream", |me, with| cu!(me.cuEventRecord(with.event, with.other))),
    ("cuEventQuery", |me, with| cu!(me.cuEventQuery(with.event))),
    ("cuMemFree", |me, with| cu!(me.cuMemFree_v2(with.memory))),
    ("cuMemHostRegister", |me, with| cu!(me.cuMemHostRegister_v2(with.page.0, PAGE, 3))),
    ("cuEventCreate", |me, _| {
        let mut event = Handle::NULL;
        cu!(me.cuEventCreate(&raw mut event, 2))
    }),
    ("cuCtxSynchronize", |me, _| cu!(me.cuCtxSynchronize())),
];

const PAGE: usize = 4096;

impl Log {
    pub(super) fn captures(&mut self, context: Handle) {
        let (mut captured, mut other, mut event) = (Handle::NULL, Handle::NULL, Handle::NULL);
        self.say("cuStreamCreate", cu!(self.cuStreamCreate(&raw mut captured, 1)));
        self.say("cuStreamCreate", cu!(self.cuStreamCreate(&raw mut other, 1)));
        self.say("cuEventCreate", cu!(self.cuEventCreate(&raw mut event, 2)));
        self.say("cuEventRecord", cu!(self.cuEventRecord(event, other)));
        self.say("cuStreamSynchronize", cu!(self.cuStreamSynchronize(other)));
        let page = Handle(super::shared(PAGE));
        for (name, call) in CALLS {
            for (mode, mode_name) in (0..).zip(MODES) {
                for by in ["its thread", "another", "another, relaxed"] {
                    let mut with = With { other, event, memory: 0, page };
                    cu!(self.cuMemAlloc_v2(&raw mut with.memory, PAGE));
                    // SAFETY: the stream is alive.
                    let begun = unsafe { (self.graphs.begin)(captured, mode) };
                    let code = match by {
                        "its thread" => call(self, with),
                        _ => self.elsewhere(context, by != "another", call, with),
                    };
                    let mut graph = Handle::NULL;
                    // SAFETY: the stream is alive; the graph is written to a variable of this function.
                    let ended = unsafe { (self.graphs.end)(captured, &raw mut graph) };
                    if ended == 0 {
                        // SAFETY: it was made above.
                        unsafe { (self.graphs.destroy)(graph) };
                    }
                    let [begun, code, ended] = [begun, code, ended].map(super::named);
                    self.line(&format!(
                        "{name}, a capture {mode_name}, {by}: begun {begun}, {code}, ended {ended}"
                    ));
                    // Registered, it stays; else it is still there.
                    if name != "cuMemFree" || code != "SUCCESS" {
                        cu!(self.cuMemFree_v2(with.memory));
                    }
                    cu!(self.cuMemHostUnregister(page.0));
                }
            }
        }
        self.say("cuEventDestroy", cu!(self.cuEventDestroy_v2(event)));
        self.say("cuStreamDestroy", cu!(self.cuStreamDestroy_v2(captured)));
        self.say("cuStreamDestroy", cu!(self.cuStreamDestroy_v2(other)));
    }

    /// Makes a call in another thread.
    fn elsewhere(&self, context: Handle, relaxed: bool, call: Call, with: With) -> u32 {
        let run = || {
            cu!(self.cuCtxSetCurrent(context));
            if relaxed {
                let mut mode = RELAXED;
                newer!(self.cuThreadExchangeStreamCaptureMode(&raw mut mode));
            }
            call(self, with)
        };
        std::thread::scope(|scope| scope.spawn(run).join()).unwrap()
    }
}
