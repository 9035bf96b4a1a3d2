//! Authentication key, and proofs that a side knows the key, without sending the key.
//!
//! Each side has sent 32 random bytes. A proof is an HMAC-SHA256 with the key. It covers the prover's role,
//! the prover's random bytes and the other side's random bytes. So a proof can't be replayed or reflected.
//! Proofs are compared in constant time.

/// Number of random bytes that each side sends.
pub(crate) const NONCE: usize = 32;
/// Number of bytes of a proof.
pub(crate) const PROOF: usize = 32;

/// Input of a proof: the prover's role, and the random bytes of both sides.
#[cfg_attr(not(feature = "authkey"), allow(dead_code))]
pub(crate) struct ProofInput<'a> {
    /// `true` if the prover is the listener.
    pub(crate) listener: bool,
    pub(crate) provers: &'a [u8],
    pub(crate) others: &'a [u8],
}

#[cfg(feature = "authkey")]
mod enabled {
    use std::io;

    use hmac::{Hmac, KeyInit, Mac};
    use sha2::Sha256;

    use super::{NONCE, PROOF, ProofInput};

    /// Secret that both sides know.
    pub(crate) struct Key(Box<[u8]>);

    impl Key {
        pub(crate) fn new(bytes: &[u8]) -> Self {
            Self(bytes.into())
        }

        pub(crate) fn bytes(&self) -> &[u8] {
            &self.0
        }

        /// Returns `true` if the key has no bytes, for example because a variable is not set. Such a key is
        /// refused.
        pub(crate) fn is_empty(&self) -> bool {
            self.0.is_empty()
        }

        fn mac(&self, input: &ProofInput<'_>) -> Hmac<Sha256> {
            // HMAC accepts keys of any length.
            let mut mac =
                <Hmac<Sha256> as KeyInit>::new_from_slice(&self.0).expect("HMAC accepts keys of any length");
            mac.update(if input.listener { b"mp listener proof" } else { b"mp connecter proof" });
            mac.update(input.provers);
            mac.update(input.others);
            mac
        }

        pub(crate) fn prove(&self, input: &ProofInput<'_>) -> [u8; PROOF] {
            self.mac(input).finalize().into_bytes().into()
        }

        pub(crate) fn is_proof(&self, input: &ProofInput<'_>, proof: &[u8]) -> bool {
            self.mac(input).verify_slice(proof).is_ok()
        }
    }

    pub(crate) fn nonce() -> io::Result<[u8; NONCE]> {
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(io::Error::other)?;
        Ok(nonce)
    }
}

#[cfg(not(feature = "authkey"))]
mod disabled {
    use std::io;

    use super::{NONCE, PROOF, ProofInput};

    /// Key type without values: without the feature `authkey`, no key can be created.
    pub(crate) enum Key {}

    impl Key {
        pub(crate) fn is_empty(&self) -> bool {
            match *self {}
        }

        pub(crate) fn prove(&self, _: &ProofInput<'_>) -> [u8; PROOF] {
            match *self {}
        }

        pub(crate) fn is_proof(&self, _: &ProofInput<'_>, _: &[u8]) -> bool {
            match *self {}
        }
    }

    pub(crate) fn nonce() -> io::Result<[u8; NONCE]> {
        Ok([0; NONCE])
    }
}

#[cfg(not(feature = "authkey"))]
pub(crate) use disabled::{Key, nonce};
#[cfg(feature = "authkey")]
pub(crate) use enabled::{Key, nonce};

#[cfg(all(test, feature = "authkey"))]
mod tests {
    use super::*;

    #[test]
    fn authkey_proof_is_bound_to_key_role_and_nonces() {
        let (a, b, c) = (nonce().unwrap(), nonce().unwrap(), nonce().unwrap());
        let key = Key::new(b"secret");
        let input = |listener, provers, others| ProofInput { listener, provers, others };
        let proof = key.prove(&input(true, &a, &b));
        assert!(key.is_proof(&input(true, &a, &b), &proof));
        assert!(!key.is_proof(&input(false, &a, &b), &proof), "proof of the other role");
        assert!(!key.is_proof(&input(true, &b, &a), &proof), "reflected");
        assert!(!key.is_proof(&input(true, &a, &c), &proof), "replayed");
        assert!(!key.is_proof(&input(true, &a, &b), &proof[..31]), "truncated");
        assert!(!Key::new(b"Secret").is_proof(&input(true, &a, &b), &proof));
        assert!(Key::new(b"").is_empty());
    }

    /// RFC 4231, test case 2, with the same crate. A proof is the HMAC-SHA256 of the concatenated parts.
    #[test]
    fn authkey_proof_is_the_hmac_of_the_joined_parts() {
        use hmac::{Hmac, KeyInit, Mac};
        let mut mac = <Hmac<sha2::Sha256> as KeyInit>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        let known = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        let hex: String = mac.finalize().into_bytes().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, known);
        let mut mac = <Hmac<sha2::Sha256> as KeyInit>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"mp listener proofab");
        let input = ProofInput { listener: true, provers: b"a", others: b"b" };
        assert_eq!(Key::new(b"Jefe").prove(&input)[..], mac.finalize().into_bytes()[..]);
    }
}
