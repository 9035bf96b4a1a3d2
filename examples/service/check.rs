//! Test of the service: runs the service, stops it as systemd does by default, and counts failed requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const REQUESTS: usize = 32;
const DEADLINE: Duration = Duration::from_secs(60);

/// Sends a request, and returns the answer: status line, headers and text.
fn get(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn in_flight(address: &str) -> mp::AnyResult<usize> {
    let answer = get(address, "/in-flight")?;
    Ok(answer.rsplit("\r\n").next().unwrap_or_default().trim().parse()?)
}

/// Service in a separate process group, which stands for the control group of a systemd unit.
struct Unit(Child);

impl Drop for Unit {
    fn drop(&mut self) {
        // It has ended, unless this check has failed.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

pub(crate) fn run() -> mp::AnyResult<()> {
    let mut service = Command::new(std::env::current_exe()?);
    service.arg("127.0.0.1:0").process_group(0).stdout(Stdio::piped());
    let mut unit = Unit(service.spawn()?);
    let mut lines = BufReader::new(unit.0.stdout.take().ok_or("it has no output")?).lines();
    let first = lines.next().ok_or("it said nothing")??;
    let address = first.strip_prefix("listening on ").ok_or("it does not listen")?.to_owned();

    let failed = std::thread::scope(|scope| -> mp::AnyResult<usize> {
        let requests: Vec<_> =
            (0..REQUESTS).map(|_| scope.spawn(|| get(&address, "/primes/50000"))).collect();
        // All of them have begun. The requests in flight are those without an answer.
        let until = Instant::now() + DEADLINE;
        while in_flight(&address)? + requests.iter().filter(|request| request.is_finished()).count()
            < REQUESTS
        {
            if Instant::now() > until {
                return Err("the requests do not arrive".into());
            }
        }
        let at_stop = in_flight(&address)?;
        // The signal comes from outside, to each process of the group.
        let group = format!("-{}", unit.0.id());
        let mut kill = Command::new("kill");
        kill.args(["-TERM", "--", &group]).process_group(0);
        assert!(kill.status()?.success());
        println!("SIGTERM to all processes of the service, {at_stop} requests in flight");
        let answers = requests.into_iter().map(|request| request.join().expect("no request panics"));
        let good = |answer: &std::io::Result<String>| {
            answer.as_ref().is_ok_and(|text| text.starts_with("HTTP/1.1 200") && text.ends_with("5133\n"))
        };
        let failed: Vec<_> = answers.filter(|answer| !good(answer)).collect();
        failed.iter().for_each(|answer| eprintln!("failed: {answer:?}"));
        Ok(failed.len())
    })?;
    let last = lines.next().ok_or("it does not say that it has stopped")??;
    assert_eq!(last, "stopped");
    assert!(unit.0.wait()?.success());
    println!("{REQUESTS} requests, {failed} failed");
    assert_eq!(failed, 0);
    Ok(())
}
