//! Fuzz targets for invitations: hostile packets, and values of the variable `MP_INVITATION`.

use super::*;

/// Decodes the bytes of a packet, of which at most `PACKET + 1` are received.
pub(crate) fn invitations(bytes: &[u8]) {
    let got = bytes.len().min(PACKET + 1);
    match read_packet(&bytes[..got], got < bytes.len()) {
        Ok(ticket) => assert_eq!(packet_of(ticket), bytes),
        Err(Error::NoInvitation(_) | Error::Version { .. }) => {}
        Err(other) => panic!("unexpected error: {other:?}"),
    }
}

pub(crate) fn invitation_samples() -> Vec<(&'static str, Vec<u8>)> {
    let ticket = EnvelopeTicket::from_bytes(&[5; EnvelopeTicket::BYTES]).unwrap();
    let place = FdAddress { fd: 7, maker: 4711 };
    vec![("invitation", packet_of(ticket)), ("place of an invitation", place.to_string().into_bytes())]
}

pub(crate) fn invitation_seeds() -> Vec<Vec<u8>> {
    vec![invitation_samples()[0].1.clone()]
}

pub(crate) fn places(bytes: &[u8]) {
    match FdAddress::read(OsStr::from_bytes(bytes)) {
        Ok(place) => {
            assert!(place.fd >= 0);
            assert_eq!(FdAddress::read(OsStr::new(&place.to_string())).unwrap(), place);
        }
        Err(Error::NoInvitation(_) | Error::Version { .. }) => {}
        Err(other) => panic!("unexpected error: {other:?}"),
    }
}

pub(crate) fn place_seeds() -> Vec<Vec<u8>> {
    vec![invitation_samples()[1].1.clone(), b"v1:-7:4711".to_vec()]
}
