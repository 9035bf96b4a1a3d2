//! Fuzz targets of this crate, for `cargo xtask fuzz` and the unit tests: envelopes, packets of the locker,
//! invitations, and names of shared memory.

use crate::invitation::handshake::fuzz::{
    invitation_samples, invitation_seeds, invitations, place_seeds, places,
};
use crate::shared_memory::checked;
use crate::transport::fuzz::{
    envelope_samples, envelope_seeds, envelopes, parcel_samples, parcel_seeds, parcels,
};

/// Fuzz targets: for each, a name, the function under test, and a function that creates valid inputs.
#[allow(
    clippy::type_complexity,
    reason = "the harness defines this type, and only tests depend on the harness"
)]
pub const TARGETS: &[(&str, fn(&[u8]), fn() -> Vec<Vec<u8>>)] = &[
    ("envelopes", envelopes, envelope_seeds),
    ("parcels", parcels, parcel_seeds),
    ("invitations", invitations, invitation_seeds),
    ("places", places, place_seeds),
    ("names", names, name_seeds),
];

/// Checks that an accepted name is a single file name.
fn names(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match checked(text) {
        Ok(name) => {
            let is_plain = !name.contains(['/', '\0']) && !["", ".", ".."].contains(&name);
            assert!(is_plain && name.len() <= 255, "{name:?}");
            assert_eq!(checked(name).unwrap(), name);
        }
        Err(why) => assert!(matches!(why, crate::Error::InvalidArgument(_)), "{why:?}"),
    }
}

fn name_seeds() -> Vec<Vec<u8>> {
    ["/psm_1234abcd", "a name", "..", "a/../b"].map(|name| name.as_bytes().to_vec()).to_vec()
}

/// Returns sample packets for docs/reference/wire.md: envelopes, invitations, and packets that pass the
/// arena's file to a process.
pub fn samples() -> Vec<(&'static str, Vec<u8>)> {
    [envelope_samples(), parcel_samples(), invitation_samples()].concat()
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg_attr(miri, ignore = "has sockets, and takes long")]
    fn hostile_envelopes_and_packets_are_read_or_refused() {
        mp_harness::hostile::short(super::TARGETS);
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads a file")]
    fn envelope_bytes_match_the_golden_file() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/golden.txt");
        mp_harness::hostile::golden(file, "wire version 6, invitations version 2", &super::samples());
    }
}
