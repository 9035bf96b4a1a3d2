//! Proof that both sides know the key of their cluster, without sending it.
//!
//! A proof is HMAC-SHA256, under the key, of the prover's role, the prover's random bytes and the random
//! bytes of the other side. So a proof can't be replayed or reflected. Proofs are compared in constant time.

use hmac::{Hmac, KeyInit, Mac};
use mp_core::AuthKey;
use sha2::Sha256;

/// Number of random bytes that each side sends.
pub(crate) const NONCE: usize = 32;

/// Side of a stream that proves its knowledge of the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProofSide {
    Caller,
    Home,
}

fn mac(key: &AuthKey, prover: ProofSide, own: &[u8], other: &[u8]) -> Hmac<Sha256> {
    // HMAC accepts keys of any length.
    let mut mac =
        <Hmac<Sha256> as KeyInit>::new_from_slice(key.as_ref()).expect("HMAC accepts keys of any length");
    mac.update(match prover {
        ProofSide::Caller => b"mp cluster caller",
        ProofSide::Home => b"mp cluster member",
    });
    mac.update(own);
    mac.update(other);
    mac
}

/// Returns the proof of the side `prover`. `own` has the random bytes of this side, and `other` has the
/// random bytes of the other side.
pub(crate) fn prove(key: &AuthKey, prover: ProofSide, own: &[u8], other: &[u8]) -> Vec<u8> {
    mac(key, prover, own, other).finalize().into_bytes().to_vec()
}

/// Returns `true` if `proof` equals the result of [`prove`] for these arguments. The comparison takes
/// constant time.
pub(crate) fn is_proof(key: &AuthKey, prover: ProofSide, own: &[u8], other: &[u8], proof: &[u8]) -> bool {
    mac(key, prover, own, other).verify_slice(proof).is_ok()
}

/// Masks `bytes`: computes XOR with a pad that the key and `nonce` determine. A second call removes the mask.
/// A nonce must be used for one text only.
pub(crate) fn mask(key: &AuthKey, nonce: &[u8], bytes: &[u8]) -> Vec<u8> {
    let pad = (0_u64..).flat_map(|block| {
        let mut mac =
            <Hmac<Sha256> as KeyInit>::new_from_slice(key.as_ref()).expect("HMAC accepts keys of any length");
        [b"mp cluster mask".as_slice(), nonce, &block.to_le_bytes()].iter().for_each(|part| mac.update(part));
        <[u8; 32]>::from(mac.finalize().into_bytes())
    });
    bytes.iter().zip(pad).map(|(byte, pad)| byte ^ pad).collect()
}

/// Returns random bytes.
///
/// # Errors
/// Returns an error if the system has no random bytes.
pub(crate) fn nonce() -> Result<[u8; NONCE], mp_core::Error> {
    let mut nonce = [0; NONCE];
    getrandom::fill(&mut nonce)
        .map_err(|e| mp_core::Error::Unsupported(format!("the system has no random bytes: {e}")))?;
    Ok(nonce)
}

/// Returns a random number that is not 0.
///
/// # Errors
/// Returns an error if the system has no random bytes.
pub(crate) fn random() -> Result<u64, mp_core::Error> {
    let bytes = nonce()?;
    let number = bytes.iter().take(8).fold(0, |n, byte| n << 8 | u64::from(*byte));
    Ok(number | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_text_is_readable_only_with_the_same_key() {
        let (key, other) = (AuthKey::from(b"family".as_slice()), AuthKey::from(b"another".as_slice()));
        let text: Vec<u8> = (0..100).collect();
        let masked = mask(&key, b"nonce", &text);
        assert_eq!(mask(&key, b"nonce", &masked), text);
        assert!(mask(&other, b"nonce", &masked) != text && mask(&key, b"other", &masked) != text);
        assert!(masked != text && masked[..32] != masked[32..64]);
    }

    #[test]
    fn key_proof_is_bound_to_key_role_and_nonces() {
        let (a, b) = (nonce().unwrap(), nonce().unwrap());
        let (key, other) = (AuthKey::from(b"secret".as_slice()), AuthKey::from(b"Secret".as_slice()));
        let proof = prove(&key, ProofSide::Home, &a, &b);
        assert!(is_proof(&key, ProofSide::Home, &a, &b, &proof));
        for (key, side, own, theirs) in [
            (&other, ProofSide::Home, &a, &b),
            (&key, ProofSide::Caller, &a, &b),
            (&key, ProofSide::Home, &b, &a),
        ] {
            assert!(!is_proof(key, side, own, theirs, &proof));
        }
        assert!(!is_proof(&key, ProofSide::Home, &a, &b, &proof[1..]));
    }
}
