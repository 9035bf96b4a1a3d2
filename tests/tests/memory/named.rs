//! Named shared memory and lists of processes that know only the name, including Python. Also refused names
//! and files, and leaks after a death.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use mp::list::{ListError, ListItem};
use mp::{Error, Queue, ShareableList, SharedMemory};
use mp_tests::python::{self, Python};
use mp_tests::{Outcome, failure, give, join, one_process, signal, take};
use rustix::process::Signal;

fn path(name: &str) -> PathBuf {
    PathBuf::from("/dev/shm").join(name)
}

/// Name that no other test uses. Dropping it removes the name.
struct Name(String);

impl Name {
    fn new() -> Self {
        Self(SharedMemory::new(1).unwrap().unlink_on_drop().name().to_owned())
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        _ = SharedMemory::unlink(&self.0);
    }
}

fn write_by_name(_: usize, (name, memory): (String, SharedMemory)) -> Outcome {
    let opened = SharedMemory::open(&name)?;
    opened.write_at(3, b"by name")?;
    memory.write_at(20, b"by message")?;
    Ok(())
}

#[test]
fn processes_share_memory_by_name() {
    let _alone = mp_tests::alone();
    let memory = SharedMemory::new(100).unwrap().unlink_on_drop();
    let again = SharedMemory::open(memory.name()).unwrap();
    assert_eq!((memory.len(), again.len()), (100, 100));
    let args = (memory.name().to_owned(), again);
    join(&one_process(write_by_name, args)).unwrap();
    assert_eq!(memory.read(0, 12).unwrap(), b"\0\0\0by name\0\0");
    assert_eq!(memory.read(20, 10).unwrap(), b"by message");
    memory.atomic(11).unwrap().store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(memory.read(86, 14).unwrap(), [[0; 2].as_slice(), &[255; 8], &[0; 4]].concat());
    assert!(memory.atomic(12).is_none(), "only 4 of the 8 bytes exist");
    let larger = SharedMemory::new(200).unwrap().unlink_on_drop();
    larger.copy_from(&memory).unwrap();
    assert_eq!(larger.read(20, 10).unwrap(), b"by message");
    assert!(matches!(memory.copy_from(&larger), Err(Error::OutOfBounds(_))));
    for error in [
        memory.read_at(94, &mut [0; 7]).unwrap_err(),
        memory.write_at(usize::MAX, b"x").unwrap_err(),
        memory.read(0, 101).unwrap_err(),
    ] {
        assert!(matches!(error, Error::OutOfBounds(_)), "{error}");
    }
}

#[test]
fn names_of_memory_are_private_and_kept_until_unlink() {
    let _alone = mp_tests::alone();
    let name = Name::new();
    let memory = SharedMemory::create(&name.0, 10).unwrap();
    let stat = std::fs::metadata(path(&name.0)).unwrap();
    assert_eq!((stat.mode() & 0o777, stat.len()), (0o600, 10));
    let exists = SharedMemory::create(&name.0, 10).unwrap_err();
    assert!(
        matches!(&exists, Error::Os { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists)
    );
    drop(memory);
    // A handle that was only opened does not remove the name, even if it is configured to.
    drop(SharedMemory::open(&format!("/{}", name.0)).unwrap().unlink_on_drop());
    SharedMemory::unlink(&name.0).unwrap();
    let gone = SharedMemory::open(&name.0).unwrap_err();
    assert!(matches!(&gone, Error::Os { source, .. } if source.kind() == std::io::ErrorKind::NotFound));
    // A name that belongs to another file by the time of the drop is not removed.
    let first = SharedMemory::create(&name.0, 10).unwrap().unlink_on_drop();
    SharedMemory::unlink(&name.0).unwrap();
    let _second = SharedMemory::create(&name.0, 10).unwrap();
    drop(first);
    SharedMemory::open(&name.0).unwrap();
    // Generated names have 128 random bits.
    let (a, b) =
        (SharedMemory::new(1).unwrap().unlink_on_drop(), SharedMemory::new(1).unwrap().unlink_on_drop());
    assert!(a.name().len() >= 32 && a.name() != b.name());
}

#[test]
fn named_memory_of_other_programs_is_refused() {
    let _alone = mp_tests::alone();
    for bad in ["", "..", "a/b", "a\0b"] {
        assert!(matches!(SharedMemory::create(bad, 1), Err(Error::InvalidArgument(_))), "{bad:?}");
        assert!(matches!(SharedMemory::open(bad), Err(Error::InvalidArgument(_))), "{bad:?}");
    }
    let name = Name::new();
    assert!(matches!(SharedMemory::create(&name.0, 0), Err(Error::InvalidArgument(_))));
    let huge = SharedMemory::create(&name.0, 1 << 50).unwrap_err();
    assert!(matches!(huge, Error::OutOfMemory { asked, .. } if asked == 1 << 50), "{huge}");
    assert!(!path(&name.0).exists(), "left behind");

    std::fs::write(path(&name.0), "").unwrap();
    assert!(matches!(SharedMemory::open(&name.0), Err(Error::NotShareable(_))), "an empty file");
    std::fs::write(path(&name.0), "some bytes").unwrap();
    SharedMemory::open(&name.0).unwrap();
    if std::os::unix::fs::chown(path(&name.0), Some(65_534), None).is_ok() {
        let error = SharedMemory::open(&name.0).unwrap_err();
        assert!(matches!(&error, Error::NotShareable(why) if why.contains("user 65534")), "{error}");
    } else {
        mp_harness::skip("another user's file, which only root can make");
    }
    let link = Name::new();
    std::os::unix::fs::symlink(path(&name.0), path(&link.0)).unwrap();
    assert!(matches!(SharedMemory::open(&link.0), Err(Error::Os { .. })), "a link");
    let pipe = Name::new();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path(&pipe.0),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    assert!(matches!(SharedMemory::open(&pipe.0), Err(Error::NotShareable(_))), "a pipe");
    assert!(matches!(ShareableList::create(&pipe.0, []), Err(ListError::Failed(Error::Os { .. }))));
}

fn set_slots(_: usize, (name, ready): (String, Queue<u32>)) -> Outcome {
    let list = ShareableList::open(&name)?;
    give(&ready, std::process::id());
    for i in 0..i64::MAX {
        list.set(0, i)?;
        list.set(1, "x".repeat(i as usize % 30))?;
    }
    Ok(())
}

#[test]
fn killed_writer_of_a_named_list_delays_no_reader() {
    let _alone = mp_tests::alone();
    let name = Name::new();
    let list = ShareableList::create_with_room(&name.0, [0.into(), "".into()], 30).unwrap();
    for _ in 0..10 {
        let ready = Queue::bounded(1).unwrap();
        let context = one_process(set_slots, (name.0.clone(), ready.clone()));
        let pid = take(&ready);
        let seen = list.get(0).unwrap();
        mp_tests::eventually("the process writes", || list.get(0).is_ok_and(|now| now != seen));
        signal(pid, Signal::KILL);
        failure(&context);
        let torn: Vec<usize> =
            (0..2).filter(|&i| matches!(list.get(i), Err(ListError::Torn { slot }) if slot == i)).collect();
        assert!(torn.len() <= 1, "{torn:?}");
        if !torn.contains(&1) {
            let ListItem::Str(text) = list.get(1).unwrap() else { panic!("{list:?}") };
            assert!(text.bytes().all(|b| b == b'x'));
        }
        list.set(0, 0).unwrap();
        list.set(1, "").unwrap();
    }
}

#[test]
fn writers_of_a_named_list_take_turns() {
    let _alone = mp_tests::alone();
    let name = Name::new();
    let list = ShareableList::create(&name.0, ["aaaaaaa".into()]).unwrap();
    std::thread::scope(|scope| {
        for text in ["bbbbbbb", "ccccccc"] {
            let (same, other) = (list.clone(), ShareableList::open(&name.0).unwrap());
            scope.spawn(move || {
                for i in 0..300 {
                    if i % 2 == 0 { same.set(0, text) } else { other.set(0, text) }.unwrap();
                    let ListItem::Str(seen) = same.get(0).unwrap() else { panic!() };
                    assert!(seen.bytes().all(|b| b == seen.as_bytes()[0]), "{seen}");
                }
            });
        }
    });
}

#[test]
fn named_memory_without_a_list_is_refused() {
    let _alone = mp_tests::alone();
    let memory = SharedMemory::new(100).unwrap().unlink_on_drop();
    for words in [[u64::MAX, 0, 8], [2, 0, 8], [1, 0, 0], [1, 8, 16], [1, 0, 1 << 40], [1, 0, 9]] {
        for (word, at) in words.iter().zip([0, 8, 16]) {
            memory.write_at(at, &word.to_ne_bytes()).unwrap();
        }
        let opened = ShareableList::open(memory.name());
        assert!(matches!(opened, Err(ListError::Malformed(_))), "{words:?}");
    }
    let name = Name::new();
    let list = ShareableList::create(&name.0, ["text".into(), 1.into()]).unwrap();
    let memory = list.memory().unwrap();
    let at = |bytes: &[u8]| {
        let all = memory.read(0, memory.len()).unwrap();
        all.windows(bytes.len()).position(|w| w == bytes).unwrap()
    };
    memory.write_at(at(b"text"), &[0xff; 4]).unwrap();
    assert!(matches!(list.get(0), Err(ListError::NotText { slot: 0 })));
    let format = at(b"8s\0\0");
    for bad in [b"9s\0\0\0\0\0\0", b"99999999", b"s\0\0\0\0\0\0\0", b"-1s\0\0\0\0\0"] {
        memory.write_at(format, bad).unwrap();
        assert!(matches!(list.get(0), Err(ListError::Malformed(_))), "{bad:?}");
    }
    assert_eq!(list.get(1).unwrap(), ListItem::Int(1));
}

const UNTRACKED: &str = "
from multiprocessing import shared_memory, resource_tracker
def untrack(shm):
    # Before Python 3.13, opening registers the name, to be unlinked at exit.
    resource_tracker.unregister(shm._name, 'shared_memory')
";

#[test]
fn python_opens_named_memory_of_rust() {
    let _alone = mp_tests::alone();
    if !python::has("multiprocessing.shared_memory") {
        return;
    }
    let memory = SharedMemory::new(64).unwrap().unlink_on_drop();
    memory.write_at(0, b"from rust").unwrap();
    let script = "
shm = shared_memory.SharedMemory(sys.argv[1]); untrack(shm)
say(shm.size)
say(bytes(shm.buf[:9]).decode())
shm.buf[32:43] = b'from python'
shm.close()
say('done')
";
    let mut python = Python::run(&format!("{UNTRACKED}{script}"), &[memory.name()]);
    assert_eq!(python.line(), "64");
    assert_eq!(python.line(), "from rust");
    assert_eq!(python.line(), "done");
    assert_eq!(memory.read(32, 11).unwrap(), b"from python");
    python.end();
    SharedMemory::open(memory.name()).expect("Python has not removed the name");
}

#[test]
fn rust_opens_named_memory_of_python() {
    let _alone = mp_tests::alone();
    if !python::has("multiprocessing.shared_memory") {
        return;
    }
    let script = "
shm = shared_memory.SharedMemory(create=True, size=5000)
shm.buf[4990:5000] = b'0123456789'
say(shm.name)
input()
say(bytes(shm.buf[:5]).decode())
shm.close(); shm.unlink()
";
    let mut python = Python::run(&format!("{UNTRACKED}{script}"), &[]);
    let name = python.line();
    let memory = SharedMemory::open(&name).unwrap();
    assert!(memory.len() >= 5000);
    assert_eq!(memory.read(4990, 10).unwrap(), b"0123456789");
    memory.write_at(0, b"hello").unwrap();
    python.report("go on");
    assert_eq!(python.line(), "hello");
    python.end();
    assert!(SharedMemory::open(&name).is_err(), "Python has removed the name");
    assert_eq!(memory.read(0, 5).unwrap(), b"hello");
}

fn mixed() -> Vec<ListItem> {
    let text = "gr\u{fc}n, and more than eight".into();
    vec![
        text,
        (-3).into(),
        1e300.into(),
        true.into(),
        false.into(),
        ListItem::None,
        ListItem::Bytes(vec![7; 9]),
    ]
}

#[test]
fn python_opens_shareable_list_of_rust() {
    let _alone = mp_tests::alone();
    if !python::has("multiprocessing.shared_memory") {
        return;
    }
    let name = Name::new();
    let list = ShareableList::create(&name.0, mixed()).unwrap();
    let script = "
l = shared_memory.ShareableList(name=sys.argv[1]); untrack(l.shm)
say(ascii(list(l)))
say(l.format)
l[0] = 'python'; l[1] = 2.5; l[5] = 12; l[6] = None
say(l.index('python'))
l.shm.close()
";
    let mut python = Python::run(&format!("{UNTRACKED}{script}"), &[&name.0]);
    let sevens = r"\x07".repeat(9);
    let expected = format!(r"['gr\xfcn, and more than eight', -3, 1e+300, True, False, None, b'{sevens}']");
    assert_eq!(python.line(), expected);
    assert_eq!(python.line(), list_format());
    assert_eq!(python.line(), "0");
    python.end();
    let now: Vec<ListItem> =
        vec!["python".into(), 2.5.into(), 1e300.into(), true.into(), false.into(), 12.into(), ListItem::None];
    assert_eq!(list.to_vec().unwrap(), now);
}

fn list_format() -> &'static str {
    "32sqdxxxxxxx?xxxxxxx?xxxxxx?x16s"
}

#[test]
fn rust_opens_shareable_list_of_python() {
    let _alone = mp_tests::alone();
    if !python::has("multiprocessing.shared_memory") {
        return;
    }
    let script = r"
l = shared_memory.ShareableList(['gr\u00fcn, and more than eight', -3, 1e300, True, False, None, b'\x07' * 9])
say(l.shm.name)
input()
say(ascii(list(l)))
l.shm.close(); l.shm.unlink()
";
    let mut python = Python::run(&format!("{UNTRACKED}{script}"), &[]);
    let list = ShareableList::open(&python.line()).unwrap();
    assert_eq!(list.to_vec().unwrap(), mixed());
    assert_eq!(list.format().unwrap(), list_format());
    list.set(0, "from rust").unwrap();
    list.set(1, false).unwrap();
    python.report("go on");
    assert!(python.line().starts_with("['from rust', False, 1e+300, True"));
    python.end();
}
