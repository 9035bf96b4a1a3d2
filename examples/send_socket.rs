//! A listener that passes accepted connections to worker processes. A worker that is free takes the next
//! connection, unlike with `SO_REUSEPORT`.
//!
//! `cargo run --release --example send_socket -- 10000`

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use mp::{Fd, Queue, SpawnOptions};

const WORKERS: usize = 2;

/// Answers each connection of the queue until the queue is closed. Returns the number of connections.
fn serve(_rank: usize, connections: Queue<Fd<TcpStream>>) -> mp::AnyResult<u64> {
    let mut served = 0;
    for connection in connections.iter() {
        let Fd(mut stream) = connection?;
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        stream.write_all(&[byte[0] + 1])?;
        served += 1;
    }
    Ok(served)
}

/// Makes `count` connections, one after the other.
fn connect(_rank: usize, (address, count): (SocketAddr, u64)) -> mp::AnyResult<()> {
    for _ in 0..count {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(&[1])?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        assert_eq!(answer, [2]);
    }
    Ok(())
}

fn main() -> mp::AnyResult<()> {
    let count: u64 = std::env::args().nth(1).map_or(Ok(10_000), |n| n.parse())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let connections = Queue::bounded(64)?;
    let workers = mp::start_processes(serve, connections.clone(), SpawnOptions::nprocs(WORKERS))?;
    let client = mp::start_processes(connect, (listener.local_addr()?, count), SpawnOptions::nprocs(1))?;

    let start = Instant::now();
    for _ in 0..count {
        let (stream, _) = listener.accept()?;
        connections.put(Fd(stream))?; // closed here; the worker has it
    }
    connections.close();
    let served = workers.join()?;
    let seconds = start.elapsed().as_secs_f64();
    client.join()?;
    assert_eq!(served.iter().sum::<u64>(), count);
    println!("{count} connections by {WORKERS} workers: {:.0} a second", count as f64 / seconds);
    Ok(())
}
