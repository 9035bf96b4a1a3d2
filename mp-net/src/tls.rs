//! Connections with TLS between members that show certificates of one CA.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mp_core::mutex::Mutex;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName,
    RootCertStore, ServerConfig, SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::error::{NetError, Refusal};
use crate::launcher::LauncherError;
use crate::socket::AsyncSocket;

/// Name that all certificates of members contain.
const NAME: &str = "mp-cluster";
/// ALPN name of the protocol inside TLS.
const HTTP2: &[u8] = b"h2";

/// Certificate of this process, its private key, and the CA of the cluster.
///
/// ```no_run
/// use mp_net::{ClusterConfig, ClusterTls};
///
/// let tls = ClusterTls::from_pem_files("ca.pem", "member.pem", "member.key")?;
/// let config = ClusterConfig::new(0, 2, "host-a:29501").tls(tls);
/// # Ok::<(), mp_net::NetError>(())
/// ```
///
/// Each side of a connection shows its certificate. The other side checks that the CA has signed it, that it
/// is valid at this time, and that it has the name `mp-cluster` (`subjectAltName=DNS:mp-cluster`). Names and
/// addresses of hosts are not compared, because the address of a member is known only after it has started.
/// So one certificate can serve all hosts. If the certificate has an extended key usage, it must include
/// `serverAuth` and `clientAuth`.
///
/// Changed files are read again before the next connection. So certificates can be renewed while the members
/// run: see [`from_pem_files`](Self::from_pem_files).
///
/// Connections use TLS 1.3. A process with such a certificate is trusted as a member: use a CA that signs
/// certificates of one cluster only.
#[derive(Clone)]
pub struct ClusterTls(Arc<TlsFiles>);

/// Files of a TLS identity, and the identity that was read last.
struct TlsFiles {
    /// Files of the CA, the certificate and the private key, and their versions; `None` for an identity that
    /// was created from texts.
    files: Option<([PathBuf; 3], Mutex<[FileVersion; 3]>)>,
    identity: Mutex<Arc<TlsIdentity>>,
}

/// Version of a file: device, inode, size, and time of the last change. `None` if the file can't be found.
type FileVersion = Option<(u64, u64, u64, i64, i64)>;

struct TlsIdentity {
    /// Texts of the CA, the certificate and the private key, for worker processes.
    pem: [Vec<u8>; 3],
    connector: TlsConnector,
    acceptor: TlsAcceptor,
}

impl fmt::Debug for ClusterTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [ca, certificate, _] = &self.0.identity.lock().pem;
        write!(f, "ClusterTls(CA of {} bytes, certificate of {} bytes)", ca.len(), certificate.len())
    }
}

impl ClusterTls {
    /// Reads PEM files: one or more CA certificates, the certificate of this process followed by its
    /// intermediate certificates, and its unencrypted private key.
    ///
    /// Before each later connection, changed files are read again. New connections use the previous identity
    /// while a file can't be read, or while the key and the certificate don't match because only one of them
    /// was replaced. Existing connections keep their certificates. A worker process that receives a handle
    /// keeps the contents that the files had at that time.
    ///
    /// # Errors
    /// [`NetError::Configuration`] if a file can't be read, and the errors of [`from_pem`](Self::from_pem).
    pub fn from_pem_files(
        ca: impl AsRef<Path>,
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, NetError> {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let files = [ca.as_ref(), certificate.as_ref(), key.as_ref()].map(absolute);
        // Read before the files: a later change is found by the next comparison.
        let versions = versions(&files);
        let identity = Mutex::new(Arc::new(TlsIdentity::read(&files)?));
        Ok(Self(Arc::new(TlsFiles { files: Some((files, Mutex::new(versions))), identity })))
    }

    /// Creates an identity from the contents of PEM files: see [`from_pem_files`](Self::from_pem_files).
    ///
    /// # Errors
    /// [`NetError::Configuration`] if a text has no certificate or key, or the key belongs to another
    /// certificate.
    pub fn from_pem(ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<Self, NetError> {
        let identity = Mutex::new(Arc::new(TlsIdentity::new([ca, certificate, key].map(<[u8]>::to_vec))?));
        Ok(Self(Arc::new(TlsFiles { files: None, identity })))
    }

    /// Reads the files that `MP_TLS_CA`, `MP_TLS_CERT` and `MP_TLS_KEY` name. Returns `None` if no variable
    /// is set.
    ///
    /// # Errors
    /// Returns an error if only some variables are set, or [`from_pem_files`](Self::from_pem_files) fails.
    pub(crate) fn from_vars(get: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, LauncherError> {
        let Some([ca, certificate, key]) = crate::launcher::tls_files(get)? else { return Ok(None) };
        let tls = Self::from_pem_files(ca, certificate, key);
        tls.map(Some).map_err(|e| LauncherError::Certificates(e.to_string()))
    }

    /// Returns the TLS identity. Reads the files again if they have changed, and keeps the former identity if
    /// they are invalid.
    fn identity(&self) -> Arc<TlsIdentity> {
        let TlsFiles { files, identity } = &*self.0;
        if let Some((files, known)) = files {
            let (now, mut known) = (versions(files), known.lock());
            if now != *known
                && let Ok(read) = TlsIdentity::read(files)
            {
                (*known, *identity.lock()) = (now, Arc::new(read));
            }
        }
        identity.lock().clone()
    }

    /// Returns the texts from which [`from_pem`](Self::from_pem) creates the same identity.
    pub(crate) fn pem(&self) -> [Vec<u8>; 3] {
        self.identity().pem.clone()
    }

    /// Encrypts the connection to a home.
    ///
    /// # Errors
    /// `Err(Ok(refusal))` if one side refused the other, and `Err(Err(error))` if the socket failed.
    pub(crate) async fn connect(
        &self,
        socket: impl AsyncSocket + 'static,
    ) -> Result<Box<dyn AsyncSocket>, Result<Refusal, io::Error>> {
        let name = ServerName::try_from(NAME).map_err(|e| Err(io::Error::other(e)))?;
        match self.identity().connector.connect(name, socket).await {
            Ok(socket) => Ok(Box::new(socket)),
            Err(error) => Err(refusal(&error).ok_or(error)),
        }
    }

    /// Encrypts an accepted connection.
    ///
    /// # Errors
    /// Text of the error, and the socket.
    pub(crate) async fn accept<T>(&self, socket: T) -> Result<Box<dyn AsyncSocket>, (String, T)>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        match self.identity().acceptor.accept(socket).into_fallible().await {
            Ok(socket) => Ok(Box::new(socket)),
            Err((error, socket)) => {
                Err((refusal(&error).map_or_else(|| error.to_string(), |why| why.to_string()), socket))
            }
        }
    }
}

/// Returns the version of each file.
fn versions(files: &[PathBuf; 3]) -> [FileVersion; 3] {
    files.each_ref().map(|file| {
        let meta = std::fs::metadata(file).ok()?;
        Some((meta.dev(), meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()))
    })
}

impl TlsIdentity {
    fn read(files: &[PathBuf; 3]) -> Result<Self, NetError> {
        let read = |path: &PathBuf| {
            let invalid = |e| NetError::Configuration(format!("{} can't be read: {e}", path.display()));
            std::fs::read(path).map_err(invalid)
        };
        let [ca, certificate, key] = files.each_ref().map(read);
        Self::new([ca?, certificate?, key?])
    }

    fn new(pem: [Vec<u8>; 3]) -> Result<Self, NetError> {
        let [ca, certificate, key] = &pem;
        let invalid = |what: &str, e: &dyn fmt::Display| NetError::Configuration(format!("{what}: {e}"));
        let chain = |what: &str, pem: &[u8]| -> Result<Vec<CertificateDer<'static>>, NetError> {
            let all: Vec<_> = CertificateDer::pem_slice_iter(pem)
                .collect::<Result<_, _>>()
                .map_err(|e| invalid(what, &e))?;
            if all.is_empty() { Err(invalid(what, &"no certificate in PEM form")) } else { Ok(all) }
        };
        let mut roots = RootCertStore::empty();
        for root in chain("the CA of the cluster", ca)? {
            roots.add(root).map_err(|e| invalid("the CA of the cluster", &e))?;
        }
        let own = chain("the certificate of this process", certificate)?;
        let key_der = PrivateKeyDer::from_pem_slice(key);
        let key_der = key_der.map_err(|e| invalid("the private key of this process", &e))?;
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let unusable = |e: rustls::Error| invalid("the certificate or key of this process", &e);

        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
        let verifier = MemberVerifier(verifier.map_err(|e| invalid("the CA of the cluster", &e))?);
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_single_cert(own.clone(), key_der.clone_key())
            .map_err(unusable)?;
        server.alpn_protocols = vec![HTTP2.to_vec()];
        // Tickets are useless: connections are few, and each one verifies the certificate.
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_root_certificates(roots)
            .with_client_auth_cert(own, key_der)
            .map_err(unusable)?;
        client.alpn_protocols = vec![HTTP2.to_vec()];
        let (connector, acceptor) = (Arc::new(client).into(), Arc::new(server).into());
        Ok(Self { pem, connector, acceptor })
    }
}

/// Returns the reason for an error of TLS, or `None` if the socket failed.
pub(crate) fn refusal(error: &io::Error) -> Option<Refusal> {
    use CertificateError as Certificate;
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(Refusal::Certificate(match error {
        rustls::Error::InvalidCertificate(Certificate::Expired | Certificate::ExpiredContext { .. }) => {
            "its certificate has expired: renew it, or set the clock of this host".into()
        }
        rustls::Error::InvalidCertificate(Certificate::UnknownIssuer | Certificate::BadSignature) => {
            "its certificate is from another CA: give all members certificates of one CA".into()
        }
        rustls::Error::InvalidCertificate(
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. },
        ) => format!("its certificate lacks the name of members: add subjectAltName=DNS:{NAME}"),
        rustls::Error::InvalidCertificate(other) => format!("its certificate is invalid: {other}"),
        rustls::Error::NoCertificatesPresented => "it shows no certificate: see ClusterConfig::tls".into(),
        rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => {
            "the certificate of this process has expired: renew it, or set the clock of the other host".into()
        }
        rustls::Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            "the certificate of this process is from another CA: give all members certificates of one CA"
                .into()
        }
        rustls::Error::AlertReceived(AlertDescription::BadCertificate) => format!(
            "it rejects the certificate of this process: add subjectAltName=DNS:{NAME}, and see its log"
        ),
        rustls::Error::InvalidMessage(_) => {
            "it uses no TLS, and this process does: give certificates to all members or to none".into()
        }
        other => format!("TLS failed: {other}"),
    }))
}

/// Verifier of the certificates of callers: signed by the CA, with the name of members.
#[derive(Debug)]
struct MemberVerifier(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for MemberVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.0.verify_client_cert(end_entity, intermediates, now)?;
        let name = ServerName::try_from(NAME).map_err(|e| rustls::Error::General(e.to_string()))?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, &name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
