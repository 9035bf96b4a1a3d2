//! Switches of mutations. This file is only in the copy of the sources that `cargo xtask mutate` makes.

use std::sync::OnceLock;

use crate::process::{GENERATIONS, PerProcess};
use crate::sync::shared::{AtomicU8, Ordering};

/// Returns `true` if the mutation with this name is switched on: the environment variable `MP_MUTANT`
/// contains its name.
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {{
        // fork: a forked child has the environment of its parent.
        static SITE: $crate::mutant::Site = $crate::mutant::Site::new($name);
        SITE.is_on()
    }};
}

const OFF: u8 = 1;
const ON: u8 = 2;

/// Switch of a mutation. Its value is read from the environment once.
#[derive(Debug)]
pub struct Site {
    name: &'static str,
    state: AtomicU8,
}

impl Site {
    /// Creates the switch of the mutation with this name.
    pub const fn new(name: &'static str) -> Self {
        Self { name, state: AtomicU8::new(0) }
    }

    /// Returns `true` if the mutation is switched on in this process.
    #[inline]
    pub fn is_on(&self) -> bool {
        match self.state.load(Ordering::Relaxed) {
            0 => self.read(),
            state => state == ON,
        }
    }

    #[cold]
    fn read(&self) -> bool {
        static NAMED: PerProcess<OnceLock<Option<String>>> =
            PerProcess::new([const { OnceLock::new() }; GENERATIONS]);
        let named =
            NAMED.get_or_init(|| std::env::var("MP_MUTANT").ok().filter(|_| !crate::gained_privileges()));
        let is_on = named.as_deref() == Some(self.name);
        self.state.store(if is_on { ON } else { OFF }, Ordering::Relaxed);
        is_on
    }
}
