//! Authentication of two programs that were started separately: they share a secret key, and a peer with
//! another key is refused.
//!
//! `cargo run --example socket_key`
//!
//! In this example, the second program is a second copy of this program. It could be any other program.

use std::io::{Read, Write};
use std::process::{Command, ExitStatus, Stdio};

use mp::connection::{ConnectError, SocketOptions};

/// Runs the client program.
fn client(address: &str) -> mp::AnyResult<()> {
    // Not an argument: those are visible to all users.
    let mut key = Vec::new();
    std::io::stdin().read_to_end(&mut key)?;
    let connection = SocketOptions::new().authkey(key).connect(address)?;
    connection.send((6_u64, 7_u64))?;
    println!("6 * 7 = {}", connection.recv::<u64>()?);
    Ok(())
}

/// Starts the client, and sends it a key.
fn start_client(address: &str, key: &[u8]) -> mp::AnyResult<impl FnOnce() -> std::io::Result<ExitStatus>> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.arg(address).stdin(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    child.stdin.take().ok_or("it has no stdin")?.write_all(key)?;
    Ok(move || child.wait())
}

fn main() -> mp::AnyResult<()> {
    if let Some(address) = std::env::args().nth(1) {
        return client(&address);
    }
    // An abstract name of the kernel. A path would be a file.
    let address = format!("@socket_key-{}", std::process::id());
    let listener = SocketOptions::new().authkey(b"known to both").listen(address.as_str())?;

    let wrong = start_client(&address, b"a guess")?;
    match listener.accept() {
        Err(ConnectError::KeyMismatch { pid, .. }) => {
            println!("process {pid} has another key, and is refused")
        }
        other => return Err(format!("it was not refused: {other:?}").into()),
    }
    assert!(!wrong()?.success());

    // The listener continues.
    let right = start_client(&address, b"known to both")?;
    let connection = listener.accept()?;
    let (a, b) = connection.recv::<(u64, u64)>()?;
    connection.send(a * b)?;
    assert!(right()?.success());
    println!("the one with the key was served");
    Ok(())
}
