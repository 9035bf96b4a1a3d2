//! Functions that fork servers call before they make processes. Each test runs in a separate process, because
//! a process has one fork server.

mod common;

use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use common::{alone, children, eventually, join, server, signal, wait_for_the_end};
use mp_spawn::{SpawnOptions, StartMethod, Stdio, set_forkserver_preload, start_processes};

fn served(nprocs: usize) -> SpawnOptions {
    SpawnOptions::nprocs(nprocs).start_method(StartMethod::ForkServer)
}

static TABLE: OnceLock<Vec<u32>> = OnceLock::new();

#[test]
fn preloaded_data_is_shared_by_all_copies() {
    alone(|()| {
        let look = |_: usize, (): ()| Ok::<_, String>(TABLE.get().cloned());
        assert_eq!(start_processes(look, (), served(1)).unwrap().join().unwrap(), [None]);
        // The table has the id of the process that made it: the server that runs from now on.
        set_forkserver_preload(|| _ = TABLE.set(vec![std::process::id()])).unwrap();
        let seen = start_processes(look, (), served(2)).unwrap().join().unwrap();
        assert_eq!(seen, [Some(vec![server()]), Some(vec![server()])]);
        assert!(TABLE.get().is_none());
    });
}

#[test]
fn fork_server_preload_may_exceed_the_handshake_time() {
    alone(|()| {
        let slow = || {
            std::thread::sleep(Duration::from_secs(3)); // sleep: simulates slow work
            _ = TABLE.set(vec![std::process::id()]);
        };
        set_forkserver_preload(slow).unwrap();
        let look = |_: usize, (): ()| Ok::<_, String>(TABLE.get().cloned());
        let impatient = || served(1).handshake_timeout(Duration::from_millis(700));
        for _ in 0..2 {
            let seen = start_processes(look, (), impatient()).unwrap().join().unwrap();
            assert_eq!(seen, [Some(vec![server()])]);
        }
    });
}

/// Returns the path of the file to which a fork server of the process `parent` writes a process id while it
/// preloads.
fn preloads(parent: u32) -> PathBuf {
    std::env::temp_dir().join(format!("mp-preloads-{parent}"))
}

#[test]
fn failed_or_stopped_fork_server_preload_is_an_error() {
    fn say_who(pid: u32) {
        let path = preloads(parent_id());
        let draft = path.with_extension("draft");
        std::fs::write(&draft, pid.to_string()).unwrap();
        std::fs::rename(draft, path).unwrap();
    }
    fn hangs() {
        say_who(std::process::id());
        wait_for_the_end().unwrap();
    }
    /// Starts a process that holds the open files of this one. Then this process exits.
    #[allow(unsafe_code)]
    fn leaves_another_behind() {
        // SAFETY: the copy only waits, which is allowed after a fork.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: a plain system call.
            unsafe { libc::sleep(120) };
        } else {
            say_who(pid.cast_unsigned());
        }
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(3) };
    }
    alone(|()| {
        let fails = || {
            let impatient = served(1).handshake_timeout(Duration::from_millis(300));
            start_processes(|_: usize, (): ()| {}, (), impatient).unwrap_err().to_string()
        };
        let who = || {
            let path = preloads(std::process::id());
            eventually("a server preloads", || path.exists());
            let pid: u32 = std::fs::read_to_string(&path).unwrap().parse().unwrap();
            std::fs::remove_file(path).unwrap();
            pid
        };
        for (number, expected) in [(libc::SIGKILL, "SIGKILL"), (libc::SIGSTOP, "it is stopped")] {
            set_forkserver_preload(hangs).unwrap();
            let start = std::thread::spawn(fails);
            let pid = who();
            assert_eq!(pid, server());
            signal(pid, number);
            let text = start.join().unwrap();
            assert!(text.contains(expected) && text.contains(&format!("pid {pid}")), "{text}");
            assert_eq!(children(), []);
        }
        set_forkserver_preload(leaves_another_behind).unwrap();
        let text = fails();
        signal(who(), libc::SIGKILL);
        assert!(text.contains("it is gone") && text.contains("exited with code 3"), "{text}");
        assert_eq!(children(), []);
    });
}

/// Exit function in the server and its copies: creates a file that is named after the exiting process.
extern "C" fn note_exit() {
    let folder = std::env::temp_dir().join(format!("mp-exits-{}", parent_id()));
    std::fs::write(folder.join(std::process::id().to_string()), "").unwrap();
}

#[allow(unsafe_code)]
fn at_exit() {
    // SAFETY: the function lives as long as the program.
    assert_eq!(unsafe { libc::atexit(note_exit) }, 0);
}

#[test]
#[cfg(target_env = "gnu")]
fn workers_run_no_exit_function_of_the_preload() {
    alone(|()| {
        let folder = std::env::temp_dir().join(format!("mp-exits-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        set_forkserver_preload(at_exit).unwrap();
        // The second rank also registers a function for its own exit.
        let work = |rank: usize, (): ()| {
            print!("no line of rank {rank}");
            if rank == 1 {
                at_exit();
            }
        };
        let context = start_processes(work, (), served(2).stdout(Stdio::Capture)).unwrap();
        context.wait().unwrap();
        let printed = [0, 1].map(|rank| context.stdout(rank).unwrap().text());
        let noted = std::fs::read_dir(&folder).unwrap();
        let noted: Vec<_> = noted.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(noted, [context.pids()[1].to_string()]);
        assert_eq!(printed, ["no line of rank 0", "no line of rank 1"]);
    });
}

#[test]
fn forbidden_preloads_are_refused() {
    fn refused(expected: &str) {
        let error = start_processes(|_: usize, (): ()| {}, (), served(1)).unwrap_err();
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        assert_eq!(children(), []);
    }
    alone(|()| {
        set_forkserver_preload(|| panic!("the model is missing")).unwrap();
        refused("panicked: the model is missing");
        set_forkserver_preload(|| _ = std::thread::spawn(wait_for_the_end)).unwrap();
        refused("it has started threads");
        set_forkserver_preload(|| _ = mp_tensor::Tensor::<f32>::zeros([3])).unwrap();
        refused("it has made shared memory");
        set_forkserver_preload(|| {}).unwrap();
        join(&start_processes(|_: usize, (): ()| {}, (), served(1)).unwrap()).unwrap();
    });
}
