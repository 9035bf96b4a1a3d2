//! Identities of devices.

use std::fmt;

/// Identity of a GPU, or of an instance (part) of a GPU. The identity is the same in all processes,
/// regardless of `CUDA_VISIBLE_DEVICES`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    /// Formats the identity like `nvidia-smi -L`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (i, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02x}", if matches!(i, 0 | 4 | 6 | 8 | 10) { "-" } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_identity_is_formatted_like_nvidia_smi() {
        let uuid = Uuid([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        assert_eq!(uuid.to_string(), "GPU-00010203-0405-0607-0809-0a0b0c0d0eff");
    }
}
