//! Mutations: single mistakes in the protocols, each behind a name, none there unless its name is in the environment. They
//! measure the tests: `cargo xtask mutate` switches them on one by one, and lists which test finds which
//! (docs/verification.md).
//!
//! A mutation is a condition in the code, `mutant!("area.what")`, in front of the step that it takes away or changes. With the
//! feature `inject` it asks whether `MP_MUTANT` has this name, which child processes inherit; without, it is `false`, and the
//! compiler removes it.
//!
//! ```ignore
//! if !mutant!("ring.put.intent-skipped") {
//!     m.store(self.intent, self.envelope as u64 + 1);
//! }
//! ```

/// Whether the mutation of this name is switched on.
#[cfg(not(feature = "inject"))]
#[doc(hidden)]
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        const { $crate::mutant::off($name) }
    };
}

/// What each is in a build without the feature: a constant.
#[cfg(not(feature = "inject"))]
pub const fn off(_name: &str) -> bool {
    false
}

/// Whether the mutation of this name is switched on.
#[cfg(feature = "inject")]
#[doc(hidden)]
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {{
        // fork: what it keeps is what the environment says, which a copy has as its original has.
        static SITE: $crate::mutant::Site = $crate::mutant::Site::new($name);
        SITE.is_on()
    }};
}

#[cfg(feature = "inject")]
pub use site::Site;

#[cfg(feature = "inject")]
mod site {
    use std::sync::OnceLock;

    use crate::process::{GENERATIONS, PerProcess};
    use crate::sync::shared::{AtomicU8, Ordering};

    const OFF: u8 = 1;
    const ON: u8 = 2;

    /// One place in the code; it asks the environment once.
    #[derive(Debug)]
    pub struct Site {
        name: &'static str,
        state: AtomicU8,
    }

    impl Site {
        /// The mutation with this name.
        pub const fn new(name: &'static str) -> Self {
            Self { name, state: AtomicU8::new(0) }
        }

        /// Whether it is switched on in this process.
        #[inline]
        pub fn is_on(&self) -> bool {
            match self.state.load(Ordering::Relaxed) {
                0 => self.ask(),
                state => state == ON,
            }
        }

        #[cold]
        fn ask(&self) -> bool {
            static NAMED: PerProcess<OnceLock<Option<String>>> =
                PerProcess::new([const { OnceLock::new() }; GENERATIONS]);
            let named =
                NAMED.get_or_init(|| std::env::var("MP_MUTANT").ok().filter(|_| !crate::gained_privileges()));
            let is_on = named.as_deref() == Some(self.name);
            self.state.store(if is_on { ON } else { OFF }, Ordering::Relaxed);
            is_on
        }
    }

    #[cfg(test)]
    mod tests {
        #[test]
        fn no_mutation_is_on_unless_it_is_named() {
            assert!((0..2).all(|_| !mutant!("mutant.that-is-named-nowhere")));
        }
    }
}
