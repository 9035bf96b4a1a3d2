//! Types with a human-readable form, and 128-bit numbers, in places where serde buffers a value before it
//! reads the value: untagged and internally tagged enums, and flattened fields.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use mp_reduce::{Message, pack};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::same;

/// Value that is a text in human-readable formats and a number in other formats, like the types of crates for
/// times and identifiers.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Moment(u64);

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() { s.collect_str(&format_args!("T{}", self.0)) } else { self.0.serialize(s) }
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        if !d.is_human_readable() {
            return u64::deserialize(d).map(Moment);
        }
        let text = String::deserialize(d)?;
        let n = text.strip_prefix('T').and_then(|n| n.parse().ok());
        n.map(Moment).ok_or_else(|| serde::de::Error::custom("no moment"))
    }
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Host {
    ip: IpAddr,
    socket: SocketAddr,
    seen: Moment,
    letter: char,
    pause: Duration,
    by_ip: BTreeMap<Ipv4Addr, Moment>,
}

fn host() -> Host {
    Host {
        ip: Ipv6Addr::LOCALHOST.into(),
        socket: ([127, 0, 0, 1], 80).into(),
        seen: Moment(7),
        letter: 'ß',
        pause: Duration::from_millis(1500),
        by_ip: BTreeMap::from([(Ipv4Addr::LOCALHOST, Moment(1))]),
    }
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(untagged)]
enum Untagged {
    Host(Host),
    Ip(IpAddr),
    Seen { seen: Moment, again: Option<Moment> },
    Pairs(Vec<(Moment, IpAddr)>),
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(tag = "kind")]
enum Internally {
    Host(Host),
    Seen { by: IpAddr, at: Moment },
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(tag = "kind", content = "of")]
enum Adjacently {
    Host(Host),
    Wide(u128, i128),
    Seen { by: IpAddr, at: Moment },
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Flat {
    id: u8,
    #[serde(flatten)]
    host: Host,
    #[serde(flatten)]
    rest: BTreeMap<String, Ipv4Addr>,
}

#[test]
fn human_readable_types_round_trip() {
    same(host());
    same(Untagged::Host(host()));
    same([Untagged::Ip(Ipv4Addr::LOCALHOST.into()), Untagged::Ip(Ipv6Addr::LOCALHOST.into())]);
    same(Untagged::Seen { seen: Moment(3), again: Some(Moment(u64::MAX)) });
    same(Untagged::Pairs(vec![(Moment(1), Ipv4Addr::LOCALHOST.into())]));
    same([Internally::Host(host()), Internally::Seen { by: Ipv6Addr::LOCALHOST.into(), at: Moment(0) }]);
    same([Adjacently::Host(host()), Adjacently::Seen { by: Ipv4Addr::LOCALHOST.into(), at: Moment(0) }]);
    same(Flat { id: 1, host: host(), rest: BTreeMap::from([("a".into(), Ipv4Addr::BROADCAST)]) });
}

#[test]
fn numbers_of_128_bits_round_trip_where_serde_can() {
    same([u128::MAX, 0, 1 << 64]);
    same([i128::MIN, -1, 0, i128::MAX]);
    same(Adjacently::Wide(u128::MAX, i128::MIN));
    same(BTreeMap::from([(u128::MAX, Some(i128::MIN)), (3, None)]));
    #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
    struct Own {
        id: u128,
        #[serde(flatten)]
        rest: BTreeMap<String, u8>,
    }
    same(Own { id: u128::MAX, rest: BTreeMap::from([("a".into(), 1)]) });
}

/// serde can't buffer 128-bit numbers, in any format. The sender must refuse and return such a value.
#[test]
fn numbers_of_128_bits_are_refused_where_serde_cannot() {
    #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
    #[serde(tag = "kind")]
    enum Tagged {
        Wide { id: u128 },
        Narrow { id: u64 },
    }
    #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
    #[serde(untagged)]
    enum Bare {
        Wide(i128),
    }
    #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
    struct Outer {
        #[serde(flatten)]
        inner: Inner,
    }
    #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
    struct Inner {
        id: u128,
    }
    #[track_caller]
    fn refused<T: Message + Clone + PartialEq + Debug>(value: T) {
        let error = match pack(value.clone()) {
            Ok(_) => panic!("{value:?} was put"),
            Err(error) => error,
        };
        assert!(error.to_string().contains("128"), "{error}");
        assert_eq!(error.value, value);
    }
    refused(Tagged::Wide { id: 1 });
    same(Tagged::Narrow { id: 1 });
    refused(Bare::Wide(-1));
    refused(vec![Outer { inner: Inner { id: u128::MAX } }]);
}
