//! Members with certificates, and peers that are refused.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mp_harness::eventually;
use mp_net::{Cluster, ClusterConfig, ClusterTls, NetError, Refusal, RemoteQueue};
use mp_queue::Queue;
use mp_tensor::Tensor;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Maximum time until a refusal is reported. For a silent home, joining waits twice as long.
const SOON: Duration = Duration::from_secs(20);

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/certificates").join(name)
}

/// Returns the identity of the certificate `name`, which trusts `ca`.
fn identity(name: &str, ca: &str) -> ClusterTls {
    let [ca, certificate, key] = [format!("{ca}.pem"), format!("{name}.pem"), format!("{name}.key")];
    ClusterTls::from_pem_files(file(&ca), file(&certificate), file(&key)).unwrap()
}

fn config(rank: usize, first: &str, tls: Option<ClusterTls>) -> ClusterConfig {
    let config = ClusterConfig::new(rank, 2, first).timeout(2 * SOON);
    tls.into_iter().fold(config, ClusterConfig::tls)
}

/// Returns the reason why rank 0 and a caller refuse to connect.
fn refusal(home: Option<ClusterTls>, caller: Option<ClusterTls>) -> String {
    let first = Cluster::join(&config(0, "127.0.0.1:0", home)).unwrap();
    refusal_of(&first, config(1, first.address(), caller))
}

fn refusal_of(first: &Cluster, caller: ClusterConfig) -> String {
    let (before, since) = (first.refused(), Instant::now());
    let error = Cluster::join(&caller).unwrap_err();
    assert!(since.elapsed() < SOON, "{error} after {:?}", since.elapsed());
    eventually("the refused connection is counted", || first.refused() > before);
    match error {
        NetError::Refused { why: Refusal::Certificate(why) | Refusal::Key(why), .. } => why,
        other => panic!("another error: {other}"),
    }
}

#[test]
fn members_with_certificates_exchange_tensors() -> Outcome {
    let member = || Some(identity("member", "ca"));
    // Certificates alone suffice for listening to other hosts, without a key.
    let first = Cluster::join(&config(0, "127.0.0.1:0", member()).listen("0.0.0.0:0"))?;
    let second = Cluster::join(&config(1, first.address(), member()))?;
    let queue = Queue::<Tensor<u8>>::bounded(4)?;
    first.publish("tensors", &queue)?;
    let remote = RemoteQueue::<Tensor<u8>>::connect(&second, "tensors")?;
    for bytes in [1, 1000, 3 << 20] {
        remote.put(Tensor::from_fn([bytes], |i| i as u8)?)?;
        let there = remote.get()?.expect("it is open");
        assert!(there.len() == bytes && there.iter().enumerate().all(|(i, byte)| byte == i as u8));
    }
    assert_eq!(first.refused(), 0);
    Ok(())
}

#[test]
fn unusable_tls_certificates_are_refused_by_reason() {
    let member = || Some(identity("member", "ca"));
    let other = || Some(identity("other", "other-ca"));
    for (home, caller, expected) in [
        (member(), other(), "its certificate is from another CA"),
        (other(), member(), "its certificate is from another CA"),
        (member(), Some(identity("other", "ca")), "the certificate of this process is from another CA"),
        (member(), Some(identity("expired", "ca")), "the certificate of this process has expired"),
        (member(), Some(identity("unnamed", "ca")), "add subjectAltName=DNS:mp-cluster"),
        (member(), None, "this process has no certificate: see ClusterConfig::tls"),
        (None, member(), "it uses no TLS, and this process does"),
    ] {
        let why = refusal(home, caller);
        assert!(why.contains(expected), "{why}, expected {expected}");
    }
    // Rank 0 connects to itself, so it also checks its own certificate.
    for (name, expected) in
        [("expired", "has expired"), ("unnamed", "subjectAltName"), ("other", "another CA")]
    {
        let error = Cluster::join(&config(0, "127.0.0.1:0", Some(identity(name, "ca")))).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn renewed_tls_files_are_used_by_the_next_connection() -> Outcome {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("renewed");
    std::fs::create_dir_all(&folder)?;
    let [ca, certificate, key] = ["ca.pem", "member.pem", "member.key"].map(|name| folder.join(name));
    let replace = |path: &PathBuf, by: &str| std::fs::copy(file(by), path).map(drop);
    replace(&ca, "ca.pem")?;
    replace(&certificate, "member.pem")?;
    replace(&key, "member.key")?;
    let tls = ClusterTls::from_pem_files(&ca, &certificate, &key)?;
    let first = Cluster::join(&config(0, "127.0.0.1:0", Some(tls)))?;
    let renewed = || config(1, first.address(), Some(identity("other", "other-ca")));
    // While the key belongs to the previous certificate, the previous files count.
    replace(&ca, "other-ca.pem")?;
    replace(&certificate, "other.pem")?;
    let why = refusal_of(&first, renewed());
    assert!(why.contains("its certificate is from another CA"), "{why}");
    replace(&key, "other.key")?;
    assert_eq!(Cluster::join(&renewed())?.rank(), 1);
    Ok(())
}

#[test]
fn cluster_key_is_proved_inside_tls() {
    let tls = || Some(identity("member", "ca"));
    let first = Cluster::join(&config(0, "127.0.0.1:0", tls()).key(b"secret")).unwrap();
    let why = refusal_of(&first, config(1, first.address(), tls()).key(b"Secret"));
    assert!(why.contains("the keys differ"), "{why}");
    let second = Cluster::join(&config(1, first.address(), tls()).key(b"secret")).unwrap();
    assert_eq!(second.rank(), 1);
}

/// The peer trusts the CA, but shows no certificate.
#[test]
fn peer_without_a_certificate_is_refused() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0", Some(identity("member", "ca"))))?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("ca.pem"))?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut tls = rustls::ClientConnection::new(Arc::new(client), ServerName::try_from("mp-cluster")?)?;
    let mut socket = TcpStream::connect(first.address())?;
    socket.set_read_timeout(Some(SOON))?;
    let mut stream = rustls::Stream::new(&mut tls, &mut socket);
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
    let error = stream.read(&mut [0; 100]).unwrap_err();
    assert!(error.to_string().contains("CertificateRequired"), "{error}");
    drop(socket);
    eventually("the refused connection is counted", || first.refused() == 1);
    Ok(())
}

/// Unfinished handshakes end when a member joins, and when the cluster is dropped.
#[test]
fn half_open_tls_handshakes_end_without_a_panic() -> Outcome {
    let panics = Arc::new(AtomicU64::new(0));
    let (counted, before) = (panics.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() == Some("mp-net") {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        before(panic);
    }));
    let tls = || Some(identity("member", "ca"));
    let first = Cluster::join(&config(0, "127.0.0.1:0", tls()).lease(Duration::from_secs(600)))?;
    let mut begun = Vec::new();
    for _ in 0..300 {
        let mut socket = TcpStream::connect(first.address())?;
        socket.set_read_timeout(Some(SOON))?;
        socket.write_all(&[0x16])?;
        begun.push(socket);
    }
    let second = Cluster::join(&config(1, first.address(), tls()))?;
    eventually("the oldest handshakes have ended", || first.refused() >= 300 - 256);
    drop((second, first));
    for mut socket in begun {
        let end = socket.read_to_end(&mut Vec::new());
        assert!(end.as_ref().err().is_none_or(|e| e.kind() == ErrorKind::ConnectionReset), "{end:?}");
    }
    drop(std::panic::take_hook());
    assert_eq!(panics.load(Ordering::Relaxed), 0);
    Ok(())
}

#[test]
fn unusable_tls_files_are_named_keys_are_not_printed() -> Outcome {
    let tls = identity("member", "ca");
    let key = std::fs::read_to_string(file("member.key"))?;
    let secret = key.lines().nth(1).expect("the first line of the key");
    let printed = format!("{:?}", config(0, "127.0.0.1:0", Some(tls)));
    assert!(printed.contains("ClusterTls(CA of") && !printed.contains(secret), "{printed}");
    let bytes = format!("{:?}", key.as_bytes());
    assert!(!printed.contains(bytes.trim_matches(['[', ']'])), "{printed}");

    let error = |ca, certificate, key| {
        ClusterTls::from_pem_files(file(ca), file(certificate), file(key)).unwrap_err().to_string()
    };
    assert!(error("none.pem", "member.pem", "member.key").contains("none.pem can't be read: No such file"));
    let other = error("ca.pem", "member.pem", "other.key");
    assert!(other.contains("the certificate or key of this process"), "{other}");
    let swapped = error("ca.pem", "member.key", "member.key");
    assert!(swapped.contains("the certificate of this process: no certificate"), "{swapped}");
    let no_key = error("ca.pem", "member.pem", "member.pem");
    assert!(no_key.contains("the private key of this process"), "{no_key}");
    Ok(())
}
