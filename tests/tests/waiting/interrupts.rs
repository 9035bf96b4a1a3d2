//! Effect of Ctrl-C on workers that handle it, on workers that ignore it, and on their parent.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mp::process::{Interrupt, ProcessBuilder, RaisedKind, allow_fork, take_interrupt};
use mp::wait::Descriptor;
use mp::{
    Event, GetError, Pool, Process, Queue, Semaphore, SharedTensor, SpawnError, SpawnOptions, StartMethod,
    TaskError, Tensor, Waitable, closure, select, set_start_method, start_processes,
};
use mp_tests::{DEADLINE, Outcome, alone, eventually};

/// Program with its own terminal, in which it is the foreground process. If keys such as Ctrl-C are pressed
/// in the terminal, the kernel sends signals to all processes of the program.
struct Terminal {
    keys: OwnedFd,
    _line: OwnedFd,
}

impl Terminal {
    /// Opens a terminal. Returns `None` if this machine has no terminals.
    #[allow(unsafe_code)]
    fn begin() -> mp::AnyResult<Option<Terminal>> {
        let (mut keys, mut line) = (0, 0);
        let (name, settings, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
        // SAFETY: the first two pointers are valid for writes, and the others may be null.
        if unsafe { libc::openpty(&raw mut keys, &raw mut line, name, settings, size) } != 0 {
            return Ok(None);
        }
        // SAFETY: the descriptor is new, and has no other owner.
        let keys = unsafe { OwnedFd::from_raw_fd(keys) };
        // SAFETY: as above.
        let line = unsafe { OwnedFd::from_raw_fd(line) };
        rustix::process::setsid()?;
        rustix::process::ioctl_tiocsctty(line.as_fd())?;
        Ok(Some(Terminal { keys, _line: line }))
    }

    fn press_ctrl_c(&self) {
        assert_eq!(rustix::io::write(&self.keys, b"\x03"), Ok(1), "{}", self.keys.as_raw_fd());
    }
}

/// Runs a scenario in a program with its own terminal. Its workers are started by `method`.
fn on_a_terminal<F>(method: StartMethod, scenario: F) -> Process<()>
where
    F: Fn(&Terminal) -> Outcome + Copy + Send + 'static,
{
    let begin = move |method: String| -> Outcome {
        let Some(terminal) = Terminal::begin()? else {
            mp_harness::skip("there are no terminals here");
            return Ok(());
        };
        #[allow(unsafe_code)]
        // SAFETY: the other threads of this process hold no lock for long, and the code of the copies uses no
        // resources of other threads.
        unsafe {
            allow_fork();
        }
        // A shell ignores the signal for programs that it runs in the background, so the default is restored.
        #[allow(unsafe_code)]
        // SAFETY: this installs no handler.
        unsafe {
            libc::signal(libc::SIGINT, libc::SIG_DFL)
        };
        set_start_method(method.parse()?);
        // The terminal must exist until the program exits, because its end would end the program.
        scenario(Box::leak(Box::new(terminal)))
    };
    let program =
        Process::builder().start_method(StartMethod::Spawn).spawn(begin, method.to_string()).unwrap();
    assert!(program.wait_timeout(DEADLINE), "{program:?}");
    program
}

fn with_each_method<F>(scenario: F)
where
    F: Fn(&Terminal) -> Outcome + Copy + Send + 'static,
{
    let _alone = alone();
    for method in [StartMethod::Spawn, StartMethod::ForkServer, StartMethod::Fork] {
        on_a_terminal(method, scenario).join().unwrap_or_else(|error| panic!("{method}: {error}"));
    }
}

/// Objects that the workers of a scenario share.
type Things = (Queue<u32>, Event, SharedTensor<u64>);

fn things() -> mp::AnyResult<Things> {
    Ok((Queue::bounded(1)?, Event::new()?, Tensor::zeros([8])?.share()))
}

const BEGUN: usize = 0;

/// Waits until `count` workers have begun.
fn begun(count: u64, words: &SharedTensor<u64>) {
    eventually("the workers have begun", || words.load(BEGUN) == count);
}

/// Waits for an event that never occurs, by the call that its rank selects. Returns the error of the call.
fn waits_for_nothing(way: usize, (queue, event, words): Things) -> mp::AnyResult<String> {
    words.fetch_add(BEGUN, 1);
    let (other, full) = (Queue::<u32>::bounded(1)?, Queue::bounded(1)?);
    full.put(0)?;
    Ok(match way {
        0 => format!("{:?}", queue.get().unwrap_err()),
        1 => format!("{:?}", event.wait().unwrap_err()),
        2 => format!("{:?}", select(&[&queue, &event], None).unwrap_err()),
        3 => format!("{:?}", full.put(1).unwrap_err().forget()),
        // Waits in a thread that does not get the signal.
        4 => format!("{:?}", std::thread::spawn(move || queue.get().unwrap_err()).join().unwrap()),
        5 => format!("{:?}", Semaphore::new(0)?.acquire().unwrap_err()),
        6 | 7 => {
            let (socket, _other) = UnixStream::pair()?;
            let both: [&dyn Waitable; 2] = [&Descriptor(&socket), &queue];
            format!("{:?}", select(&both[..way - 5], None).unwrap_err())
        }
        _ => {
            while !mp::interrupted() {
                std::hint::spin_loop();
            }
            // Available values can still be taken, and time-outs still apply.
            other.put(7)?;
            assert_eq!(other.get()?, Some(7));
            assert!(take_interrupt());
            assert!(!take_interrupt() && other.get_timeout(Duration::from_millis(1)).unwrap_err().is_empty());
            "Interrupted".into()
        }
    })
}

#[test]
fn ctrl_c_ends_waits_of_graceful_workers() {
    with_each_method(|terminal| {
        let things = things()?;
        let options = SpawnOptions::nprocs(9).interrupt(Interrupt::Graceful);
        let workers = start_processes(waits_for_nothing, things.clone(), options)?;
        begun(9, &things.2);
        let pressed = Instant::now();
        terminal.press_ctrl_c();
        let said = workers.join()?;
        assert!(said.iter().all(|said| said.contains("nterrupted")), "{said:?}");
        assert!(mp::interrupted() && pressed.elapsed() < DEADLINE);
        // This process is interrupted, too.
        assert!(matches!(things.0.get(), Err(GetError::Interrupted)));
        assert!(take_interrupt() && !mp::interrupted());
        Ok(())
    });
}

/// Waits for a message, and returns the error of the interrupted wait. On rank 1, finishes the work and
/// returns a result instead.
fn returns_it(rank: usize, (queue, event, words): Things) -> mp::AnyResult<()> {
    words.fetch_add(BEGUN, 1);
    if rank == 1 {
        while !mp::interrupted() {
            std::hint::spin_loop();
        }
        // Continues until the other worker has ended.
        take_interrupt();
        event.wait()?;
        words.store(1, 17);
        return Ok(());
    }
    queue.get()?;
    Ok(())
}

#[test]
fn error_after_ctrl_c_ends_no_other_process() {
    with_each_method(|terminal| {
        let things = things()?;
        let options = SpawnOptions::nprocs(2).interrupt(Interrupt::Graceful);
        let workers = start_processes(returns_it, things.clone(), options)?;
        begun(2, &things.2);
        terminal.press_ctrl_c();
        eventually("rank 0 is gone", || workers.exit(0).is_ok_and(|exit| exit.is_some()));
        assert!(!workers.join_timeout(Duration::from_millis(1))?, "rank 1 continues its work");
        things.1.set()?;
        let error = workers.join().unwrap_err();
        assert_eq!(things.2.load(1), 17, "rank 1 was ended");
        let SpawnError::ProcessRaised(raised) = &error else { return Err(error.into()) };
        assert_eq!((raised.kind, raised.who.rank), (RaisedKind::Interrupted, Some(0)));
        assert!(error.to_string().contains("ended after Ctrl-C or SIGTERM: interrupted"), "{error}");
        Ok(())
    });
}

extern "C" fn nothing(_: libc::c_int) {}

/// Installs a handler for SIGINT in this process, as in a program that handles Ctrl-C itself.
#[allow(unsafe_code)]
fn handle_it_here() {
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGINT, nothing as *const () as libc::sighandler_t) };
}

#[test]
fn only_workers_ignoring_ctrl_c_continue() {
    with_each_method(|terminal| {
        handle_it_here();
        let (ignoring, ending) = (things()?, things()?);
        let start = |things: &Things, interrupt| {
            start_processes(waits, things.clone(), SpawnOptions::nprocs(2).interrupt(interrupt))
        };
        let (ignore, end) = (start(&ignoring, Interrupt::Ignore)?, start(&ending, Interrupt::Default)?);
        begun(2, &ignoring.2);
        begun(2, &ending.2);
        terminal.press_ctrl_c();
        let error = end.join().unwrap_err();
        assert!(error.to_string().contains("SIGINT"), "{error}");
        assert!(!ignore.join_timeout(Duration::from_millis(1))?);
        ignoring.1.set()?;
        ignore.join()?;
        assert!(!mp::interrupted(), "the program handles the signal itself");
        Ok(())
    });
}

fn waits(_: usize, (_, event, words): Things) -> Outcome {
    words.fetch_add(BEGUN, 1);
    event.wait()?;
    Ok(())
}

/// Ctrl-C arrives at any instruction of a starting worker. It does not end a worker that ignores Ctrl-C, and
/// interrupts a graceful worker that has started.
#[test]
fn ctrl_c_during_start_spares_ignoring_workers() {
    with_each_method(|terminal| {
        handle_it_here();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    terminal.press_ctrl_c();
                    // sleep: the terminal's buffer of keys is small, and the workers need processor time.
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
            let started = (0..10).try_for_each(|round| {
                let interrupt = if round % 2 == 0 { Interrupt::Ignore } else { Interrupt::Graceful };
                start_processes(quick, (), SpawnOptions::nprocs(3).interrupt(interrupt))?.join().map(drop)
            });
            over.store(true, Ordering::Relaxed);
            started
        })?;
        Ok(())
    });
}

/// The pool waits for its workers in a thread that ignores the interrupt, like the workers.
#[test]
fn pool_of_a_graceful_program_continues() {
    with_each_method(|terminal| {
        // This enables interrupts in the program.
        start_processes(quick, (), SpawnOptions::nprocs(1).interrupt(Interrupt::Graceful))?.join()?;
        let ignore = |_, worker: ProcessBuilder| worker.interrupt(Interrupt::Ignore);
        let pool = Pool::builder().processes(1).per_worker(ignore).build()?;
        let (_, event, words) = things()?;
        let waits = |(event, words): (Event, SharedTensor<u64>)| -> mp::AnyResult<u32> {
            words.fetch_add(BEGUN, 1);
            event.wait()?;
            Ok(7)
        };
        let pending = pool.apply_async(waits, (event.clone(), words.clone()));
        begun(1, &words);
        terminal.press_ctrl_c();
        eventually("the program is interrupted", mp::interrupted);
        // sleep: until each wait has checked once more
        std::thread::sleep(3 * mp_core::POLL_INTERVAL);
        event.set()?;
        assert_eq!(pending.get()?, 7);
        assert_eq!(pool.map(|n: u32| n + 1, 0..3)?, [1, 2, 3]);
        pool.close();
        pool.join()?;
        Ok(())
    });
}

/// The first task ends early, with a partial result. The second task returns the error of its wait. No other
/// task begins.
fn ends_early((item, queue, words): (u64, Queue<u32>, SharedTensor<u64>)) -> mp::AnyResult<u64> {
    words.fetch_add(BEGUN, 1);
    if item == 0 {
        while !mp::interrupted() {
            std::hint::spin_loop();
        }
        return Ok(7);
    }
    queue.get()?;
    Ok(item)
}

#[test]
fn graceful_pool_cancels_unbegun_tasks() {
    with_each_method(|terminal| {
        let pool = Pool::builder().processes(2).interrupt(Interrupt::Graceful).build()?;
        let (queue, _, words) = things()?;
        let before = pool.pids();
        let call = pool.task(ends_early).retry_if(3, |_| true);
        let pending = call.map_async((0..20).map(|item| (item, queue.clone(), words.clone())));
        begun(2, &words);
        terminal.press_ctrl_c();
        eventually("all tasks have an outcome", || pending.ready());
        let results = pending.results();
        assert!(matches!(results[0], Ok(7)), "{results:?}");
        let Err(TaskError::Raised(raised)) = &results[1] else { panic!("{results:?}") };
        assert_eq!((raised.kind, raised.attempts.count()), (RaisedKind::Interrupted, 1), "{raised}");
        assert!(
            results[2..].iter().all(|result| matches!(result, Err(TaskError::Interrupted))),
            "{results:?}"
        );
        // The whole call returns one error. Tasks that are submitted before the program has handled the
        // interrupt end as well.
        let error = pool.map(|x: u64| x, 0..10).unwrap_err();
        assert!(
            error.to_string().contains("interrupted (Ctrl-C or SIGTERM) before the task had begun"),
            "{error}"
        );
        assert!(pool.map(|x: u64| x, 0..10).is_err() && words.load(BEGUN) == 2);
        // After that, the pool continues with processes that were not interrupted.
        eventually("the workers are replaced", || {
            pool.pids().iter().all(|pid| !before.contains(pid) && *pid != 0)
        });
        assert!(take_interrupt());
        assert_eq!(pool.map(|_: u64| mp::interrupted(), 0..8)?, [false; 8]);
        assert_eq!(pool.metrics().lost, 0);
        // A repeated interrupt has the same effect.
        let again = pool
            .task(ends_early)
            .chunksize(5)
            .map_async((1..12).map(|item| (item, queue.clone(), words.clone())));
        begun(4, &words);
        terminal.press_ctrl_c();
        eventually("all tasks have an outcome", || again.ready());
        assert!(
            matches!(again.get(), Err(TaskError::Raised(raised)) if raised.kind == RaisedKind::Interrupted)
        );
        assert!(take_interrupt());
        assert_eq!(pool.map(|n: u64| n + 1, 0..3)?, [1, 2, 3]);
        pool.join()?;
        Ok(())
    });
}

/// A worker may receive Ctrl-C before its program does.
#[test]
fn interrupted_task_is_reported_before_its_retry() {
    let _alone = alone();
    let pool = Pool::builder().processes(1).interrupt(Interrupt::Graceful).build().unwrap();
    let (queue, _, words) = things().unwrap();
    let pending = pool.task(ends_early).retry_if(3, |_| true).apply_async((1, queue, words.clone()));
    begun(1, &words);
    let worker = rustix::process::Pid::from_raw(pool.pids()[0].cast_signed()).unwrap();
    rustix::process::kill_process(worker, rustix::process::Signal::INT).unwrap();
    // If the task were retried, it would wait forever.
    eventually("the task has an outcome", || pending.ready());
    let Err(TaskError::Raised(raised)) = pending.get() else { panic!("{words:?}") };
    assert_eq!((raised.kind, raised.attempts.count()), (RaisedKind::Interrupted, 1), "{raised}");
    assert_eq!(words.load(BEGUN), 1);
    // Another worker continues.
    assert_eq!(pool.map(|n: u64| n + 1, 0..3).unwrap(), [1, 2, 3]);
    pool.join().unwrap();
}

const GO_ON: usize = 1;

#[test]
fn tasks_after_a_busy_task_are_cancelled_at_once() {
    with_each_method(|terminal| {
        let pool = Pool::builder().processes(2).interrupt(Interrupt::Graceful).build()?;
        let (_, _, words) = things()?;
        let reported = words.clone();
        let call = pool.task_closure(closure!([reported] |item: u64| {
            reported.fetch_add(BEGUN, 1);
            while reported.load(GO_ON) == 0 {
                std::hint::spin_loop();
            }
            item
        }));
        let pending = call.chunksize(5).map_async(0..10);
        begun(2, &words);
        terminal.press_ctrl_c();
        eventually("the others have an outcome", || pending.progress().done == 8);
        words.store(GO_ON, 1);
        eventually("all tasks have an outcome", || pending.ready());
        let results = pending.results();
        assert!(matches!((&results[0], &results[5]), (Ok(0), Ok(5))), "{results:?}");
        assert_eq!((pool.metrics().cancelled, words.load(BEGUN)), (8, 2));
        assert!(take_interrupt());
        pool.join()?;
        Ok(())
    });
}

#[test]
fn pool_with_own_ctrl_c_handler_loses_nothing() {
    with_each_method(|terminal| {
        handle_it_here();
        let pool = Pool::builder().processes(1).interrupt(Interrupt::Graceful).build()?;
        let (_, _, words) = things()?;
        let reported = words.clone();
        let call = pool.task_closure(closure!([reported] |item: u64| {
            reported.fetch_add(BEGUN, 1);
            while item == 0 && !mp::interrupted() {
                std::hint::spin_loop();
            }
            mp::interrupted()
        }));
        let pending = call.chunksize(5).map_async(0..5);
        begun(1, &words);
        terminal.press_ctrl_c();
        eventually("all tasks have an outcome", || pending.ready());
        // The other tasks ran in a process that was not interrupted.
        assert_eq!(pending.get()?, [true, false, false, false, false]);
        assert_eq!((pool.metrics().restarts, words.load(BEGUN), mp::interrupted()), (1, 5, false));
        pool.join()?;
        Ok(())
    });
}

fn quick(_: usize, (): ()) -> Outcome {
    Ok(())
}

#[test]
fn second_ctrl_c_ends_the_program_and_its_workers() {
    let _alone = alone();
    let program = on_a_terminal(StartMethod::Spawn, |terminal| {
        let options = SpawnOptions::nprocs(1).interrupt(Interrupt::Graceful);
        let _worker = start_processes(|_: usize, (): ()| std::thread::park(), (), options)?;
        terminal.press_ctrl_c();
        eventually("the program is interrupted", mp::interrupted);
        terminal.press_ctrl_c();
        eventually("the program is ended", || false);
        Ok(())
    });
    let exit = program.exit();
    assert!(exit.is_some_and(|exit| exit.to_string().contains("SIGINT")), "{exit:?}");
}

#[test]
fn inherited_ignored_ctrl_c_stays_ignored() {
    with_each_method(|terminal| {
        // `nohup` ignores the signal in the same way.
        #[allow(unsafe_code)]
        // SAFETY: this installs no handler.
        unsafe {
            libc::signal(libc::SIGINT, libc::SIG_IGN)
        };
        let things = things()?;
        let options = SpawnOptions::nprocs(1).interrupt(Interrupt::Graceful);
        let worker = start_processes(was_not_interrupted, things.clone(), options)?;
        begun(1, &things.2);
        terminal.press_ctrl_c();
        things.1.set()?;
        worker.join()?;
        assert!(!mp::interrupted());
        Ok(())
    });
}

fn was_not_interrupted(_: usize, (_, event, words): Things) -> Outcome {
    words.fetch_add(BEGUN, 1);
    event.wait()?;
    if mp::interrupted() { Err("it was interrupted".into()) } else { Ok(()) }
}
