//! Programs that share queues although `mp-spawn` did not start them. One of them is started by
//! `std::process::Command`. The other one was started independently and connects.
//!
//! `cargo run -p mp-queue --example invited`
//!
//! In this example, the other programs are this program with an argument. Any program that uses this library
//! can do the same.

use std::error::Error;
use std::process::Command;

use mp_queue::{InvitationState, Listener, Queue, accept_invitation, connect, invite};

/// Value in the invitations: a queue of jobs and a queue of results.
type Work = (Queue<u64>, Queue<(String, u64)>);

/// Squares the jobs of the queue, as an invited program.
fn square(name: &str, (jobs, squares): Work) -> Result<(), Box<dyn Error>> {
    while let Some(n) = jobs.get()? {
        squares.put((name.to_string(), n * n))?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => {}
        [started] if started == "started" => return square(started, accept_invitation()?),
        [address] => return square("connected", connect(address.as_str())?.accept_invitation()?),
        _ => return Err("no argument, or one".into()),
    }

    let (jobs, squares) = (Queue::bounded(8)?, Queue::bounded(8)?);
    let work: Work = (jobs.clone(), squares.clone());

    // A program that this one starts, with the invitation in its command.
    let mut command = Command::new(std::env::current_exe()?);
    let invitation = invite(command.arg("started"), work.clone())?;
    let mut started = command.spawn()?;
    // After this, the end of the child also ends the wait.
    drop(command);
    if invitation.wait()? != InvitationState::Accepted {
        return Err("the child ended without accepting".into());
    }

    // A program that has only the address.
    let address = format!("@invited-{}", std::process::id());
    let listener = Listener::bind(address.as_str())?;
    let mut connected = Command::new(std::env::current_exe()?).arg(&address).spawn()?;
    listener.accept()?.invite(work)?;

    let mut sum = 0;
    for n in 0..100 {
        jobs.put(n)?;
        let (name, square) = squares.get()?.ok_or("this queue stays open")?;
        sum += square;
        if n < 4 {
            println!("{n} * {n} = {square}, says the program that was {name}");
        }
    }
    jobs.close();
    assert!(started.wait()?.success() && connected.wait()?.success());
    println!("the sum of 100 squares is {sum}");
    assert_eq!(sum, 328_350);
    Ok(())
}
