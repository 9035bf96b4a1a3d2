//! Joining at an unreachable address, or at a peer that is not a member, returns an error within the time
//! limit.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use mp_harness::{DEADLINE, eventually, skip};
use mp_net::{Cluster, ClusterConfig, NetError, Refusal, RemoteQueue};
use mp_queue::Queue;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

fn config(rank: usize, first: &str) -> ClusterConfig {
    ClusterConfig::new(rank, 2, first).key(b"secret").timeout(Duration::from_secs(20))
}

/// Returns the error of joining at an address. Panics if joining takes much longer than the time limit of a
/// second.
fn join_error(address: &str) -> NetError {
    let since = Instant::now();
    let config = config(1, address).timeout(Duration::from_secs(1)).lease(Duration::from_millis(500));
    let error = Cluster::join(&config).unwrap_err();
    assert!(since.elapsed() < Duration::from_secs(10), "{error} after {:?}", since.elapsed());
    error
}

/// Returns random bytes, the same for each `seed` (SplitMix64).
fn random_bytes(seed: u64) -> Vec<u8> {
    let next = |i: u64| {
        let mut x = (seed << 32 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (x ^ x >> 27) as u8
    };
    (0..2000).map(next).collect()
}

#[test]
fn peers_without_the_protocol_are_refused() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let mut peers = vec![b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), b"PRI * HTTP/2.0\r\n\r\nSM".to_vec()];
    peers.extend((0..50).map(random_bytes));
    let number = peers.len() as u64;
    for bytes in peers {
        let mut peer = TcpStream::connect(first.address())?;
        peer.set_read_timeout(Some(DEADLINE))?;
        // The write fails if the home has closed the connection already.
        _ = peer.write_all(&bytes);
        _ = peer.shutdown(Shutdown::Write);
        if let Err(error) = peer.read_to_end(&mut Vec::new()) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
    }
    eventually("all refused peers are counted", || first.refused() == number);
    let second = Cluster::join(&config(1, first.address()))?;
    assert_eq!(second.wait_for(2, DEADLINE)?.len(), 2);
    Ok(())
}

/// Each program in the table listens at a port, and answers a caller with the bytes in the table.
#[test]
fn connecting_to_a_foreign_program_is_an_error() -> Outcome {
    let answers = [
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n".to_vec(), "another program uses the port"),
        (b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), "another program uses the port"),
        (random_bytes(7), "another program uses the port"),
        (Vec::new(), "no member of the cluster answers"),
    ];
    for (answer, expected) in answers {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let program = std::thread::spawn(move || {
            for mut caller in listener.incoming().map_while(Result::ok) {
                if ended.try_recv().is_ok() {
                    return;
                }
                _ = caller.write_all(&answer);
                _ = caller.shutdown(Shutdown::Write);
                _ = caller.read_to_end(&mut Vec::new());
            }
        });
        let error = join_error(&address);
        assert!(error.to_string().contains(expected), "{error}");
        end.send(())?;
        drop(TcpStream::connect(&address)?);
        program.join().map_err(|_| "a thread panicked")?;
    }
    Ok(())
}

#[test]
fn silent_and_unknown_hosts_are_unreachable() -> Outcome {
    // This listener never accepts a connection.
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let silent = listener.local_addr()?.to_string();
    for address in [silent.as_str(), "no-such-host.invalid:29700"] {
        let error = join_error(address);
        assert!(matches!(&error, NetError::Unreachable { address: at, .. } if at == address), "{error}");
    }
    let error = join_error("127.0.0.1:port");
    assert!(error.to_string().contains("write host:port"), "{error}");
    Ok(())
}

#[test]
fn connect_to_a_home_that_has_ended_is_an_error() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0").timeout(Duration::from_secs(1)))?;
    let second = Cluster::join(&config(1, first.address()))?;
    let queue = Queue::<u64>::bounded(4)?;
    second.publish("numbers", &queue)?;
    drop(second);
    let error = RemoteQueue::<u64>::connect(&first, "numbers").unwrap_err();
    let is_known =
        matches!(error, NetError::NotPublished { .. } | NetError::Unreachable { .. } | NetError::PeerLost(_));
    assert!(is_known, "{error}");
    Ok(())
}

/// Publishes a queue at each of two ranks, whose addresses contain `host`, and puts a message into both.
fn exchange(host: &str) -> Outcome {
    let first = Cluster::join(&config(0, &format!("{host}:0")))?;
    let second = Cluster::join(&config(1, first.address()))?;
    for (home, caller) in [(&first, &second), (&second, &first)] {
        let (queue, name) = (Queue::<u64>::bounded(4)?, format!("of {}", home.rank()));
        home.publish(&name, &queue)?;
        RemoteQueue::<u64>::connect(caller, &name)?.put(7)?;
        assert_eq!(queue.get()?, Some(7));
        assert!(home.address().starts_with('['), "{}", home.address());
    }
    Ok(())
}

#[test]
fn members_connect_over_ipv6() -> Outcome {
    if TcpListener::bind("[::1]:0").is_err() {
        skip("this machine has no IPv6");
        return Ok(());
    }
    exchange("[::1]")
}

#[test]
fn members_connect_over_link_local_addresses() -> Outcome {
    let interfaces = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let Some((digits, interface)) = interfaces.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next().filter(|word| word.starts_with("fe80"))?, words.last()?))
    }) else {
        skip("this machine has no link-local address");
        return Ok(());
    };
    let address = std::net::Ipv6Addr::from(u128::from_str_radix(digits, 16)?);
    exchange(&format!("[{address}%{interface}]"))
}

#[test]
fn cluster_join_error_has_the_kind_of_refusal() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let why = |config: ClusterConfig| match Cluster::join(&config.timeout(Duration::from_millis(200))) {
        Err(NetError::Refused { why, .. }) => Ok(why),
        Err(error) => Err(error.to_string()),
        Ok(_) => Err("it has joined".into()),
    };
    assert!(matches!(why(config(1, first.address()).key(b"other"))?, Refusal::Key(_)));
    let three = ClusterConfig::new(2, 3, first.address()).key(b"secret");
    assert!(matches!(why(three)?, Refusal::Cluster(_)));
    // A wrong number of ranks is refused only after a valid proof, so it is not counted.
    eventually("the refused key is counted", || first.refused() == 1);
    Ok(())
}

#[test]
fn cluster_member_of_another_job_is_refused() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0").job("17"))?;
    let error = Cluster::join(&config(1, first.address()).job("18")).unwrap_err();
    assert!(matches!(&error, NetError::Refused { why: Refusal::Cluster(_), .. }), "{error}");
    assert!(error.to_string().contains("job \"17\", and the caller to job \"18\""), "{error}");
    let second = Cluster::join(&config(1, first.address()))?;
    assert_eq!(second.rank(), 1);
    Ok(())
}

#[test]
fn open_listeners_of_a_cluster_need_key_or_permission() -> Outcome {
    let keyless = |listen: &str| ClusterConfig::new(0, 1, "127.0.0.1:0").listen(listen);
    let any = if TcpListener::bind("[::]:0").is_ok() { &["0.0.0.0:0", "[::]:0"][..] } else { &["0.0.0.0:0"] };
    for listen in any {
        let error = Cluster::join(&keyless(listen)).unwrap_err();
        assert!(matches!(error, NetError::Configuration(_)), "{error}");
        assert!(error.to_string().contains("neither a key nor a certificate"), "{error}");
        Cluster::join(&keyless(listen).insecure())?;
        Cluster::join(&keyless(listen).key(b"secret"))?;
    }
    Cluster::join(&keyless("127.0.0.1:0"))?;
    Ok(())
}

#[test]
fn waiting_for_too_many_members_is_an_error() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let error = first.wait_for(3, DEADLINE).unwrap_err();
    assert!(matches!(error, NetError::Configuration(_)), "{error}");
    assert!(error.to_string().contains("a cluster of 2 ranks"), "{error}");
    Ok(())
}
