//! Reasons of refusals in the log of a home.

use std::path::PathBuf;
use std::sync::Mutex;

use log::{Level, LevelFilter, Log, Metadata, Record};
use mp_harness::eventually;
use mp_net::{Cluster, ClusterConfig, ClusterTls, NetError};

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Warnings of this process.
struct WarningLog(Mutex<Vec<String>>);

static LOG: WarningLog = WarningLog(Mutex::new(Vec::new()));

impl Log for WarningLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Warn
    }

    fn log(&self, record: &Record<'_>) {
        self.0.lock().unwrap().push(record.args().to_string());
    }

    fn flush(&self) {}
}

fn identity(name: &str, ca: &str) -> ClusterTls {
    let file = |name| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/certificates").join(name);
    let [ca, certificate, key] = [format!("{ca}.pem"), format!("{name}.pem"), format!("{name}.key")];
    ClusterTls::from_pem_files(file(ca), file(certificate), file(key)).unwrap()
}

/// Makes the home refuse a member, and waits until the home has counted the refusal and logged its reason.
fn refuse(home: ClusterConfig, caller: impl FnOnce(ClusterConfig) -> ClusterConfig, why: &str) -> Outcome {
    let home = Cluster::join(&home)?;
    let caller = caller(ClusterConfig::new(1, 2, home.address()));
    let error = Cluster::join(&caller).unwrap_err();
    assert!(matches!(error, NetError::Refused { .. }), "{error}");
    eventually("the refusal is counted", || home.refused() > 0);
    let is_expected = |text: &String| text.contains("127.0.0.1:") && text.contains(why);
    eventually(why, || LOG.0.lock().unwrap().iter().any(is_expected));
    Ok(())
}

#[test]
fn refused_cluster_peers_are_counted_and_logged() -> Outcome {
    log::set_logger(&LOG)?;
    log::set_max_level(LevelFilter::Warn);
    let home = || ClusterConfig::new(0, 2, "127.0.0.1:0");
    refuse(home().key(b"secret"), |caller| caller.key(b"Secret"), "the keys differ")?;
    let tls = |name, ca| identity(name, ca);
    let home = |name| home().tls(tls(name, "ca"));
    refuse(home("member"), |caller| caller, "it uses no TLS")?;
    refuse(home("member"), |caller| caller.tls(tls("other", "other-ca")), "CA")?;
    refuse(home("member"), |caller| caller.tls(tls("expired", "ca")), "expired")
}
