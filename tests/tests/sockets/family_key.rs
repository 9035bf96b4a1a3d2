//! Processes of one family can connect to each other, and no other process can connect to them.

use mp::connection::{ConnectError, SocketOptions};
use mp::{Listener, Process};
use mp_tests::DEADLINE;

fn options() -> Result<SocketOptions, mp::Error> {
    Ok(SocketOptions::new().authkey_of_family()?.handshake_timeout(DEADLINE))
}

/// Connects and sends a message.
fn guest(address: String) -> mp::AnyResult<()> {
    options()?.connect(address)?.send("hello".to_string()).map_err(|e| e.to_string())?;
    Ok(())
}

fn host(name: &str) -> (String, Listener) {
    let address = format!("@mp-family-{}-{name}", std::process::id());
    let listener = options().unwrap().listen(address.clone()).unwrap();
    (address, listener)
}

fn met(listener: &Listener) -> Result<String, ConnectError> {
    let connection = listener.accept_timeout(DEADLINE)?.expect("no process connected");
    Ok(connection.recv().unwrap())
}

#[test]
fn process_proves_the_key_of_its_parent() {
    let _alone = mp_tests::alone();
    let (address, listener) = host("child");
    let child = Process::spawn(guest, address).unwrap();
    assert_eq!(met(&listener).unwrap(), "hello");
    child.join().unwrap();
}

#[test]
fn process_with_another_key_is_refused() {
    let _alone = mp_tests::alone();
    let (address, listener) = host("stranger");
    let stranger = Process::builder().authkey("another").spawn(guest, address).unwrap();
    assert!(matches!(met(&listener), Err(ConnectError::KeyMismatch { .. })), "the process was accepted");
    assert!(stranger.join().is_err());
}
