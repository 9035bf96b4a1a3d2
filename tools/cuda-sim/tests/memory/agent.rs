//! Processes with a device that execute commands of a test, one after another.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use mp_core::message::{Codec, Incoming, Message, Outgoing, UnsentValues, scope};
use mp_core::{FdSlots, inject};
use mp_cuda::driver::api::{Api, DriverHandle};
use mp_cuda::memory::{Piece, PieceMode};
use mp_cuda::{CudaStream, Device};
use mp_cuda_sim::session::{Session, Setup};
use mp_harness::DEADLINE;
use mp_queue::{GetError, Queue};
use mp_spawn::{Process, ProcessBuilder};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) use crate::common::{nothing_found, stat, until};

/// Returns the setup with the files that cargo has built.
pub(crate) fn setup() -> Setup {
    let engine = Path::new(env!("CARGO_BIN_EXE_mp-cuda-sim-engine"));
    let library = engine.parent().unwrap().join("deps/libmp_cuda_sim.so");
    assert!(library.exists(), "{} is not built", library.display());
    Setup::new(engine, &library)
}

/// Message with a frozen or shared piece, which several processes may hold.
#[derive(Clone, Debug)]
pub(crate) struct Parcel(pub(crate) Piece, pub(crate) PieceMode);

impl Serialize for Parcel {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let attach = |out: &mut _| self.0.attach(out).map_err(core);
        let number = scope::outgoing("a piece", attach).map_err(S::Error::custom)?;
        (number, self.1 == PieceMode::Frozen).serialize(s)
    }
}

impl<'de> Deserialize<'de> for Parcel {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (number, frozen) = <(u32, bool)>::deserialize(d)?;
        let mode = if frozen { PieceMode::Frozen } else { PieceMode::Shared };
        let take = |arrived: &mut _| Piece::take(arrived, number, mode).map_err(core);
        Ok(Self(scope::incoming("a piece", take).map_err(D::Error::custom)?, mode))
    }
}

/// Message that moves an exclusive piece. After a failed put the piece is unchanged.
#[derive(Debug)]
pub(crate) struct Moved(pub(crate) Piece, u64);

impl Moved {
    pub(crate) fn new(piece: Piece) -> Self {
        Self(piece, 0)
    }
}

impl Message for Moved {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        let attachment = self.0.lend(out.attached(), &mp_tensor::parts::nothing()).map_err(core)?;
        self.1 = out.attached().lends_object(attachment, std::sync::Arc::new(()), 0)?;
        C::write(out, &attachment)
    }

    fn take_back(&mut self, back: &mut UnsentValues) {
        if let Some((hold, _)) = back.take_object(self.1) {
            self.0.take_back(hold).unwrap();
        }
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let attachment = C::read(inc)?;
        Ok(Self::new(Piece::take(inc.arrived(), attachment, PieceMode::Exclusive).map_err(core)?))
    }
}

fn core(error: mp_cuda::Error) -> mp_core::Error {
    match error {
        mp_cuda::Error::Core(error) => error,
        other => mp_core::Error::Malformed(other.to_string()),
    }
}

/// Command for an agent. The first number in a command is the number of a piece, which the test chooses for
/// each agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Do {
    /// Allocates a piece of this many bytes on a device.
    Allocate(u32, u64),
    /// Fills the piece with a byte, and waits for the end of the work.
    Fill(u32, u8),
    /// Returns the byte with which the piece is filled.
    Read(u32),
    /// Returns the piece's address on a device.
    Open(u32, u32),
    /// Returns the id of the piece.
    Id(u32),
    Freeze(u32),
    Share(u32),
    /// Returns the piece as a parcel, which the test forwards. The mode of the parcel is frozen if the flag
    /// is set, and otherwise shared.
    Give(u32, bool),
    /// Stores the piece of this parcel under this number.
    Keep(u32, Parcel),
    /// Moves the piece into the queue of moved pieces.
    Move(u32),
    /// Takes a piece out of the queue of moved pieces.
    TakeMoved(u32),
    Drop(u32),
    /// Begins a use of the piece with write access.
    Begin(u32),
    /// Ends the use of the piece.
    End(u32),
    Collect,
    Empty,
    /// Recovers and reclaims dead processes.
    Reclaim,
    /// Returns statistics of the first device: reserved, allocated, retired, slabs, pieces, mapped slabs.
    Stats,
    /// Returns the number of the process's open descriptors.
    Files,
    /// Limits the number of descriptors that the process can open from now on. `None` removes the limit.
    Limit(Option<u64>),
    /// Forks a child, which tries to allocate memory, and drops its copies of the piece and of the mappings.
    /// Returns the child's result.
    Copied(u32),
    /// Returns 1 if two numbers refer to the same piece.
    Same(u32, u32),
    /// Executes these commands. The agent sends itself this signal at the change with this number that it
    /// makes in the arena.
    Armed(u64, i32, Vec<Do>),
}

/// Result of a command: a number or an error, and optionally a parcel.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) number: Result<u64, String>,
    numbers: Vec<u64>,
    parcel: Option<Parcel>,
}

type Asked = Queue<Do>;
type Answers = Queue<Answer>;
pub(crate) type Moves = Queue<Moved>;

/// Handle by which a test controls an agent.
pub(crate) struct Agent {
    pub(crate) process: Process<()>,
    asked: Asked,
    answers: Answers,
}

impl Agent {
    pub(crate) fn new(session: &Session, moves: &Moves) -> Self {
        Self::with(session, moves, &[])
    }

    pub(crate) fn with(session: &Session, moves: &Moves, env: &[(&str, &str)]) -> Self {
        let (asked, answers) = (Asked::bounded(4).unwrap(), Answers::bounded(4).unwrap());
        let builder = process(session).daemon(true);
        let builder = env.iter().fold(builder, |builder, (name, value)| builder.env(name, value));
        let process = builder.spawn(work, (asked.clone(), answers.clone(), moves.clone())).unwrap();
        Self { process, asked, answers }
    }

    /// Executes a command, and returns its answer. Returns `None` if the command ended the agent.
    #[track_caller]
    pub(crate) fn attempt(&self, what: Do) -> Option<Answer> {
        self.begin(what.clone());
        self.end(&what)
    }

    /// Sends a command to the agent, without waiting for its answer.
    pub(crate) fn begin(&self, what: Do) {
        self.asked.put_timeout(what, DEADLINE).unwrap();
    }

    /// Waits until the agent has stopped or has executed the command. Returns `true` if it has stopped.
    pub(crate) fn stops(&self) -> bool {
        let mut done = false;
        mp_harness::eventually("the agent stops or answers", || {
            done = !self.answers.is_empty();
            done || mp_harness::threads_are(self.process.pid(), 'T')
        });
        !done
    }

    /// Waits for the answer to the command, and returns it. Returns `None` if the command ended the agent.
    #[track_caller]
    pub(crate) fn end(&self, what: &Do) -> Option<Answer> {
        let begin = std::time::Instant::now();
        loop {
            match self.answers.get_timeout(Duration::from_millis(20)) {
                Ok(answer) => return answer,
                Err(GetError::Empty) if begin.elapsed() < DEADLINE => {}
                Err(GetError::Deserted { .. }) => return None,
                Err(error) => panic!("{what:?}: {error}"),
            }
            if !self.process.is_alive() {
                // The answer may have been sent before the death.
                return self.answers.try_get().ok().flatten();
            }
        }
    }

    #[track_caller]
    pub(crate) fn ok(&self, what: Do) -> u64 {
        let answer = self.attempt(what.clone()).unwrap_or_else(|| panic!("{what:?} ended the agent"));
        answer.number.unwrap_or_else(|error| panic!("{what:?}: {error}"))
    }

    #[track_caller]
    pub(crate) fn fails(&self, what: Do) -> String {
        let answer = self.attempt(what.clone()).unwrap_or_else(|| panic!("{what:?} ended the agent"));
        answer.number.map(|number| panic!("{what:?}: {number}")).unwrap_err()
    }

    /// Allocates a piece, fills it with a byte, and freezes it.
    #[track_caller]
    pub(crate) fn frozen(&self, piece: u32, bytes: u64, byte: u8) {
        for what in [Do::Allocate(piece, bytes), Do::Fill(piece, byte), Do::Freeze(piece)] {
            self.ok(what);
        }
    }

    /// Returns a parcel of one of the agent's pieces.
    #[track_caller]
    pub(crate) fn give(&self, piece: u32, frozen: bool) -> Parcel {
        let answer = self.attempt(Do::Give(piece, frozen)).unwrap();
        answer.number.unwrap();
        answer.parcel.unwrap()
    }

    /// Returns the statistics: reserved, allocated, retired, slabs, pieces, mapped slabs.
    #[track_caller]
    pub(crate) fn stats(&self) -> [u64; 6] {
        self.attempt(Do::Stats).unwrap().numbers.try_into().unwrap()
    }

    /// Ends the agent by SIGKILL, and waits for its end.
    pub(crate) fn kill(self) {
        self.process.kill().unwrap();
        assert!(self.process.wait_timeout(DEADLINE));
    }

    /// Ends the agent by a normal exit.
    #[track_caller]
    pub(crate) fn leave(self) {
        self.asked.close();
        assert!(self.process.wait_timeout(DEADLINE), "still there");
        self.process.join().unwrap();
    }
}

/// Returns the builder of a process that uses the devices of a session.
pub(crate) fn process(session: &Session) -> ProcessBuilder {
    let builder = Process::builder().env_remove("CUDA_VISIBLE_DEVICES");
    session.environment().into_iter().fold(builder, |builder, (name, value)| builder.env(name, value))
}

/// Starts a session and agents, which share a queue of moved pieces. The returned guard excludes other tests.
#[track_caller]
pub(crate) fn agents<const N: usize>() -> (std::sync::MutexGuard<'static, ()>, Session, [Agent; N]) {
    let (alone, session, moves) = (alone(), setup().start().unwrap(), moves());
    let agents = [(); N].map(|()| Agent::new(&session, &moves));
    (alone, session, agents)
}

/// Ends agents by a normal exit. Checks that no memory of the device is in use afterwards, and that the
/// simulator has reported no finding.
#[track_caller]
pub(crate) fn end<const N: usize>(session: &Session, agents: [Agent; N]) {
    agents.into_iter().for_each(Agent::leave);
    until(session, "bytes", 0);
    nothing_found(session);
}

/// Returns a queue for moved pieces.
pub(crate) fn moves() -> Moves {
    Moves::bounded(8).unwrap()
}

/// Runs an agent: executes commands until the test ends it.
fn work((asked, answers, moves): (Asked, Answers, Moves)) -> Result<(), String> {
    let mut worker = Worker { pieces: HashMap::new(), moves, gpu: None };
    while let Some(what) = asked.get().map_err(|error| error.to_string())? {
        let mut answer = Answer { number: Ok(0), numbers: Vec::new(), parcel: None };
        answer.number = worker.does(what, &mut answer).map_err(|error| error.to_string());
        answers.put(answer).map_err(|error| error.to_string())?;
    }
    Ok(())
}

struct Worker {
    pieces: HashMap<u32, (Piece, PieceMode)>,
    moves: Moves,
    gpu: Option<Gpu>,
}

type Any<T> = Result<T, Box<dyn std::error::Error>>;

impl Worker {
    fn does(&mut self, what: Do, answer: &mut Answer) -> Any<u64> {
        match what {
            Do::Allocate(piece, bytes) => {
                let gpu = self.gpu()?;
                let made = Piece::allocate(&gpu.device, bytes, &gpu.stream)?;
                self.pieces.insert(piece, (made, PieceMode::Exclusive));
            }
            Do::Fill(piece, byte) => {
                let (piece, _) = self.piece(piece);
                let gpu = self.gpu()?;
                gpu.fill(piece.open(&gpu.device)?, byte, piece.bytes())?;
            }
            Do::Read(piece) => {
                let (piece, _) = self.piece(piece);
                let gpu = self.gpu()?;
                return gpu.read(piece.open(&gpu.device)?, piece.bytes());
            }
            Do::Open(piece, device) => {
                return Ok(self.piece(piece).0.open(&Device::new(device)?)?);
            }
            Do::Id(piece) => return Ok(self.piece(piece).0.id()),
            Do::Freeze(piece) => self.share_as(piece, PieceMode::Frozen),
            Do::Share(piece) => self.share_as(piece, PieceMode::Shared),
            Do::Give(piece, frozen) => {
                let mode = if frozen { PieceMode::Frozen } else { PieceMode::Shared };
                answer.parcel = Some(Parcel(self.piece(piece).0, mode));
            }
            Do::Keep(piece, Parcel(kept, mode)) => _ = self.pieces.insert(piece, (kept, mode)),
            Do::Move(piece) => {
                let (piece, _) = self.pieces.remove(&piece).ok_or("no such piece")?;
                self.moves.put(Moved::new(piece)).map_err(|error| error.to_string())?;
            }
            Do::TakeMoved(piece) => {
                let Moved(taken, _) = self.moves.get_timeout(DEADLINE)?.ok_or("closed")?;
                self.pieces.insert(piece, (taken, PieceMode::Exclusive));
            }
            Do::Drop(piece) => _ = self.pieces.remove(&piece).ok_or("no such piece")?,
            Do::Begin(piece) => self.piece(piece).0.row().begin_use(),
            Do::End(piece) => self.piece(piece).0.row().end_use(),
            Do::Collect => return Ok(mp_cuda::ipc_collect()),
            Do::Empty => return Ok(mp_cuda::empty_cache()),
            Do::Reclaim => _ = mp_core::Arena::current()?.reclaim()?,
            Do::Stats => {
                let stats = mp_cuda::memory_stats(&self.gpu()?.device);
                let numbers = [stats.slabs, stats.pieces, stats.mapped_slabs].map(|number| number as u64);
                answer.numbers = [[stats.reserved, stats.allocated, stats.retired], numbers].concat();
            }
            Do::Limit(more) => {
                use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
                let maximum = getrlimit(Resource::Nofile).maximum;
                let current = more.map_or(maximum, |more| Some(lowest_free() + more));
                setrlimit(Resource::Nofile, Rlimit { current, maximum })?;
            }
            Do::Files => return Ok(mp_harness::open_files() as u64),
            Do::Armed(at, signal, script) => {
                inject::arm_at_change(at, signal);
                let done = script.into_iter().try_for_each(|what| self.does(what, answer).map(drop));
                inject::arm_at_change(u64::MAX, 0);
                done?;
            }
            Do::Copied(piece) => {
                let (piece, _) = self.pieces.remove(&piece).ok_or("no such piece")?;
                let said = copied(&self.gpu()?.device.clone(), &self.gpu()?.stream.clone(), &piece)?;
                self.pieces.insert(0, (piece, PieceMode::Exclusive));
                return Err(said.into());
            }
            Do::Same(one, other) => return Ok(u64::from(self.piece(one).0.is(&self.piece(other).0))),
        }
        Ok(0)
    }

    fn piece(&self, piece: u32) -> (Piece, PieceMode) {
        self.pieces[&piece].clone()
    }

    fn share_as(&mut self, piece: u32, mode: PieceMode) {
        let (opened, now) = self.pieces.get_mut(&piece).unwrap();
        assert!(opened.share_as(mode));
        *now = mode;
    }

    fn gpu(&mut self) -> Any<&Gpu> {
        if self.gpu.is_none() {
            self.gpu = Some(Gpu::new()?);
        }
        Ok(self.gpu.as_ref().unwrap())
    }
}

/// Returns the lowest free descriptor number of this process.
fn lowest_free() -> u64 {
    let (one, _other) = std::io::pipe().expect("two descriptors");
    u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&one)).expect("a number")
}

/// Forks a child that uses copies of this device, stream and piece. Returns its output.
fn copied(device: &Device, stream: &CudaStream, piece: &Piece) -> Any<String> {
    let (reading, mut writing) = std::io::pipe()?;
    // SAFETY: no other thread of this process is active. The copy writes to a pipe and ends.
    match unsafe { libc::fork() } {
        0 => {
            let (made, opened) = (Piece::allocate(device, 100, stream), piece.open(device));
            let collected = mp_cuda::ipc_collect() + mp_cuda::empty_cache();
            let stats = mp_cuda::memory_stats(device);
            // SAFETY: the copy ends without using the value again. The parent still has the original.
            drop(unsafe { std::ptr::read(piece) });
            _ = std::io::Write::write_fmt(
                &mut writing,
                format_args!("{made:?} {opened:?} {collected} {stats:?}"),
            );
            // SAFETY: the call ends the copy.
            unsafe { libc::_exit(0) }
        }
        copy => {
            drop(writing);
            let said = std::io::read_to_string(reading)?;
            let copy = rustix::process::Pid::from_raw(copy).ok_or("no process")?;
            rustix::process::waitpid(Some(copy), rustix::process::WaitOptions::empty())?;
            Ok(said)
        }
    }
}

/// Device, and the driver's calls that `mp-cuda` doesn't make for pieces.
struct Gpu {
    device: Device,
    stream: CudaStream,
    api: Api,
}

fn check(code: u32) -> Any<()> {
    if code == 0 { Ok(()) } else { Err(format!("the driver said {code}").into()) }
}

impl Gpu {
    fn new() -> Any<Self> {
        let device = Device::new(0)?;
        let stream = CudaStream::new(&device)?;
        // SAFETY: the session's library has the driver's functions.
        let library = unsafe { libloading::Library::new("libcuda.so.1") }?;
        // SAFETY: the session's library has the driver's functions.
        let api = unsafe { Api::load(&library) }?;
        std::mem::forget(library);
        let mut context = DriverHandle::NULL;
        // SAFETY: the call writes to a variable of this function.
        check(unsafe { (api.cuDevicePrimaryCtxRetain)(&raw mut context, 0) })?;
        // SAFETY: the context is retained.
        check(unsafe { (api.cuCtxSetCurrent)(context) })?;
        Ok(Self { device, stream, api })
    }

    fn fill(&self, at: u64, byte: u8, bytes: u64) -> Any<()> {
        let stream = DriverHandle(self.stream.as_raw());
        // SAFETY: the memory belongs to the piece, and the stream is alive.
        check(unsafe { (self.api.cuMemsetD8Async)(at, byte, usize::try_from(bytes)?, stream) })?;
        Ok(self.stream.synchronize()?)
    }

    fn read(&self, at: u64, bytes: u64) -> Any<u64> {
        let mut read = vec![0_u8; usize::try_from(bytes)?];
        let to = read.as_mut_ptr().cast();
        // SAFETY: the call writes as many bytes as the buffer has.
        check(unsafe { (self.api.cuMemcpyDtoH_v2)(to, at, read.len()) })?;
        let first = read[0];
        assert!(read.iter().all(|byte| *byte == first), "not all bytes are {first}");
        Ok(u64::from(first))
    }
}

/// Returns a guard that excludes other tests. Tests of this program run concurrently in one arena, and some
/// tests count the arena's contents.
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits until this many compartments of the locker are in use.
#[track_caller]
pub(crate) fn locker_is(used: u64) {
    let arena = mp_core::Arena::current().unwrap();
    mp_harness::eventually("the locker has its earlier contents", || {
        arena.reclaim().unwrap();
        FdSlots(arena).compartments_in_use() == used
    });
}
