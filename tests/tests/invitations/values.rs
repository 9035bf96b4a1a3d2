//! Values of invitations that panic or are nested too deeply, and inviting processes that are killed.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Command, Stdio};

use mp::connection::{InvitationState, accept_invitation, invite};
use mp::{FrozenTensor, Tensor};
use mp_core::inject;
use mp_tests::kill::{KILL, for_every_access};
use mp_tests::parcel::Parcel;
use mp_tests::{eventually_in_use, in_use, settled};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{end, guest as program, outcome};

/// Value that holds memory, and panics at a chosen point.
#[derive(Debug, Default, PartialEq, Eq, Clone, Copy, Serialize, Deserialize)]
enum Panics {
    #[default]
    Written,
    Dropped,
    Read,
}

#[derive(Debug)]
struct Bomb {
    when: Panics,
    memory: FrozenTensor<u8>,
}

fn bomb(when: Panics) -> Bomb {
    Bomb { when, memory: Tensor::zeros([1000]).unwrap().freeze() }
}

impl Serialize for Bomb {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let memory = self.memory.clone();
        if self.when == Panics::Written {
            resume_unwind(Box::new("it is written"));
        }
        (self.when, memory).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Bomb {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (when, memory): (Panics, _) = Deserialize::deserialize(deserializer)?;
        if when == Panics::Read {
            resume_unwind(Box::new("it is read"));
        }
        // Only the value that was sent panics when it is dropped.
        Ok(Self { when: Panics::Read, memory })
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.when == Panics::Dropped {
            resume_unwind(Box::new("it is dropped"));
        }
    }
}

/// Value nested too deeply to be sent.
#[derive(Debug)]
struct Deep(u32);

impl Serialize for Deep {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 == 0 { serializer.serialize_unit() } else { [Deep(self.0 - 1)].serialize(serializer) }
    }
}

impl<'de> Deserialize<'de> for Deep {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom("it is never sent"))
    }
}

pub(crate) fn guest(what: &str, argument: &str) -> bool {
    match what {
        "gets-a-bomb" => {
            let got = catch_unwind(accept_invitation::<Bomb>);
            assert_eq!(got.is_err(), argument == "panics", "{got:?}");
        }
        "invites" => {
            drop(accept_invitation::<Parcel>().unwrap());
            let parcel = || Parcel::new(7, &Tensor::zeros([1000]).unwrap().freeze()).unwrap();
            let (mut one, mut other) = (Command::new("true"), Command::new("true"));
            inject::arm(argument.parse().unwrap(), KILL);
            let invitation = invite(&mut one, parcel()).unwrap();
            drop(one);
            assert_eq!(invitation.state(), InvitationState::Lapsed);
            let invitation = invite(&mut other, parcel()).unwrap();
            assert_eq!(invitation.withdraw(), InvitationState::Lapsed);
        }
        _ => return false,
    }
    true
}

#[test]
fn panicking_invitation_value_is_not_sent_nor_leaked() {
    let _alone = settled();
    let before = in_use();
    let mut command = program("gets-a-bomb");
    let written = catch_unwind(AssertUnwindSafe(|| drop(invite(&mut command, bomb(Panics::Written)))));
    assert!(written.is_err());
    eventually_in_use(before, "no memory of the unsent value is left");
    assert!(command.get_envs().all(|(name, _)| name != "MP_INVITATION"), "the command is unchanged");
    for (when, argument) in [(Panics::Dropped, ""), (Panics::Read, " panics")] {
        let mut command = program(&format!("gets-a-bomb{argument}"));
        let invitation = invite(&mut command, bomb(when)).unwrap();
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        drop(command);
        assert!(end(&mut child).success(), "{when:?}");
        let expected = if when == Panics::Read { InvitationState::Lapsed } else { InvitationState::Accepted };
        assert_eq!(outcome(&invitation), expected, "{when:?}");
        eventually_in_use(before, "the received value was dropped");
    }
}

/// The limit on the depth of values is the same as for any message. The stack of the caller does not
/// overflow.
#[test]
fn too_deep_invitation_value_is_returned() {
    let _alone = settled();
    let before = in_use();
    let small = std::thread::Builder::new().stack_size(256 << 10);
    let invites = || {
        let mut command = Command::new("true");
        let refused = invite(&mut command, Deep(50_000)).unwrap_err();
        assert_eq!(refused.into_value().0, 50_000);
        assert!(command.get_envs().next().is_none(), "the command is unchanged");
    };
    small.spawn(invites).unwrap().join().unwrap();
    eventually_in_use(before, "nothing is left");
}

#[test]
fn inviter_killed_at_any_access_has_been_accepted() {
    for_every_access(|at| {
        let mut command = program(&format!("invites {at}"));
        let parcel = Parcel::new(7, &Tensor::zeros([1000]).unwrap().freeze()).unwrap();
        let invitation = invite(&mut command, parcel).unwrap();
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        drop(command);
        let status = end(&mut child);
        assert_eq!(outcome(&invitation), InvitationState::Accepted);
        !status.success()
    });
}
