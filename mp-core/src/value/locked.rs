//! Values and arrays with a lock.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::guard::LockGuard;
use super::header::{Form, Header, receive, send};
use crate::arena::{Hold, Patience};
use crate::error::{Error, Result};
use crate::lock::{LockError, LockWait, RawGuard, RawLock};
use crate::steps::lock::Died;
use crate::words::Member;

/// What both have.
struct Locked {
    hold: Hold,
    lock: RawLock,
    /// Where the data is in the arena.
    at: u64,
    patience: Arc<Patience>,
}

impl Locked {
    fn new(hold: Hold) -> Self {
        let lock = RawLock::new(hold.arena(), Header::lock(&hold));
        let at = Header::data(&hold);
        Self { hold, lock, at, patience: Arc::new(Patience::new()) }
    }

    /// Locks what no other code knows yet.
    fn first(&self) -> Result<RawGuard<'_>> {
        self.lock.acquire(LockWait::Never, &self.patience).map_err(|e| match e {
            LockError::Failed(e) => e,
            other => Error::Malformed(other.to_string()),
        })
    }

    #[inline(always)]
    fn acquire(&self, wait: LockWait, recovering: bool) -> Result<RawGuard<'_>, LockError> {
        let mut guard = self.lock.acquire(wait, &self.patience)?;
        if recovering {
            guard.mend();
        } else if guard.is_marked() {
            return Err(owner_died(&guard));
        }
        Ok(guard)
    }
}

#[cold]
fn owner_died(guard: &RawGuard<'_>) -> LockError {
    let Died { member, pid } = guard.died().unwrap_or(Died { member: Member::from_raw(0), pid: 0 });
    LockError::OwnerDied { member, pid }
}

impl Clone for Locked {
    fn clone(&self) -> Self {
        Self { hold: self.hold.clone(), lock: self.lock, at: self.at, patience: Arc::clone(&self.patience) }
    }
}

/// A value of plain data that several processes change, one at a time.
///
/// ```
/// use mp_core::Value;
///
/// let total = Value::new(40_u64)?; // in shared memory; clones and sent copies are handles to the same value
/// *total.lock()? += 2; // the guard is a `&mut u64`; dropping it unlocks
/// assert_eq!(total.get()?, 42);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// Your own types need no dependency on `bytemuck`, but the attribute that says where its derive macros find
/// it; in a program that uses `mp`, that is `crate = "mp::bytemuck"`:
///
/// ```
/// use mp_core::Value;
/// use mp_core::bytemuck::{Pod, Zeroable};
///
/// #[derive(Clone, Copy, Pod, Zeroable)]
/// #[bytemuck(crate = "mp_core::bytemuck")]
/// #[repr(C)]
/// struct Best {
///     loss: f64,
///     epoch: u64,
/// }
///
/// let best = Value::new(Best { loss: 0.5, epoch: 3 })?;
/// assert_eq!(best.get()?.epoch, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Blocking
/// [`lock`](Self::lock) waits as long as it takes, looking for up to 50 µs and then asleep; a caller that
/// waits for a stopped process waits until that continues. [`try_lock`](Self::try_lock) and
/// [`lock_timeout`](Self::lock_timeout) give up, and name the holder. Waiters are not served in order.
///
/// # When a process dies
/// A process that is killed while it holds the lock may have changed half of the value. From then on, locking
/// returns [`LockError::OwnerDied`] to every caller, until one calls [`recover`](Self::recover), checks the
/// value, repairs it, and drops the guard. No time-out makes a process dead: a stopped one keeps its lock.
#[doc(alias = "multiprocessing.Value")]
pub struct Value<T: Pod + Send>(Locked, PhantomData<fn(T) -> T>);

/// Elements of plain data that several processes change, one process at a time.
///
/// ```
/// use mp_core::Array;
///
/// let counts = Array::from_slice(&[0_u32; 10])?;
/// counts.lock()?[3] += 1; // the guard is a `&mut [u32]`
/// counts.set(4, 7)?;
/// assert_eq!(counts.to_vec()?[2..5], [0, 1, 7]);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// Waiting, and the death of a process, are as for [`Value`].
#[doc(alias = "multiprocessing.Array")]
pub struct Array<T: Pod + Send>(Locked, usize, PhantomData<fn(T) -> T>);

impl<T: Pod + Send> Value<T> {
    /// A value in shared memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], or [`Error::Shape`] for a type that is aligned to more than 64 bytes.
    pub fn new(value: T) -> Result<Self> {
        let locked = Locked::new(Header::of::<T>(Form::Value, 1).allocate()?);
        *LockGuard::value(&locked.hold, locked.at, locked.first()?) = value;
        Ok(Self(locked, PhantomData))
    }

    #[inline(always)]
    fn guard(&self, wait: LockWait, recovering: bool) -> Result<LockGuard<'_, T>, LockError> {
        Ok(LockGuard::value(&self.0.hold, self.0.at, self.0.acquire(wait, recovering)?))
    }

    /// A copy of the value, made under the lock.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub fn get(&self) -> Result<T, LockError> {
        Ok(*self.lock()?)
    }

    /// Replaces the value under the lock.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub fn set(&self, value: T) -> Result<(), LockError> {
        *self.lock()? = value;
        Ok(())
    }
}

impl<T: Pod + Send> Array<T> {
    /// A copy of `data` in shared memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], or [`Error::Shape`] for a type that is aligned to more than 64 bytes.
    pub fn from_slice(data: &[T]) -> Result<Self> {
        Self::made(data.len(), |to| to.copy_from_slice(data))
    }

    /// `len` elements whose bytes are all zero.
    ///
    /// # Errors
    /// As [`from_slice`](Self::from_slice).
    pub fn zeros(len: usize) -> Result<Self> {
        Self::made(len, |to| to.fill(T::zeroed()))
    }

    fn made(len: usize, fill: impl FnOnce(&mut [T])) -> Result<Self> {
        let locked = Locked::new(Header::of::<T>(Form::Array, len).allocate()?);
        fill(&mut LockGuard::slice(&locked.hold, locked.at, len, locked.first()?));
        Ok(Self(locked, len, PhantomData))
    }

    #[inline(always)]
    fn guard(&self, wait: LockWait, recovering: bool) -> Result<LockGuard<'_, [T]>, LockError> {
        Ok(LockGuard::slice(&self.0.hold, self.0.at, self.1, self.0.acquire(wait, recovering)?))
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.1
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.1 == 0
    }

    fn missing(&self, i: usize) -> LockError {
        Error::Shape(format!("element {i} of an array of {}", self.1)).into()
    }

    /// A copy of one element, made under the lock.
    ///
    /// # Errors
    /// [`Error::Shape`] when there is no such element, and as [`lock`](Self::lock).
    pub fn get(&self, i: usize) -> Result<T, LockError> {
        self.lock()?.get(i).copied().ok_or_else(|| self.missing(i))
    }

    /// Replaces one element under the lock.
    ///
    /// # Errors
    /// [`Error::Shape`] when there is no such element, and as [`lock`](Self::lock).
    pub fn set(&self, i: usize, value: T) -> Result<(), LockError> {
        *self.lock()?.get_mut(i).ok_or_else(|| self.missing(i))? = value;
        Ok(())
    }

    /// A copy of all elements, made under the lock.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub fn to_vec(&self) -> Result<Vec<T>, LockError> {
        Ok(self.lock()?.to_vec())
    }
}

/// The methods about locking, and what makes it a handle.
macro_rules! locking {
    ($name:ident, $guard:ty, $form:expr, $what:literal, |$locked:ident, $len:ident| $make:expr, $count:expr) => {
        impl<T: Pod + Send> $name<T> {
            /// Locks it; waits as long as it takes.
            ///
            /// # Errors
            /// [`LockError::OwnerDied`] when a process died while it held the lock and no caller has
            /// recovered since, [`LockError::WouldDeadlock`] when this thread holds it already,
            /// [`LockError::Failed`] in a forked copy.
            #[inline]
            #[doc(alias = "get_lock")]
            pub fn lock(&self) -> Result<LockGuard<'_, $guard>, LockError> {
                self.guard(LockWait::Forever, false)
            }

            /// Locks it if it is not held.
            ///
            /// # Errors
            /// [`LockError::Held`], which names the holder, and as [`lock`](Self::lock).
            pub fn try_lock(&self) -> Result<LockGuard<'_, $guard>, LockError> {
                self.guard(LockWait::Never, false)
            }

            /// Locks it; waits at most `timeout`.
            ///
            /// # Errors
            /// As [`try_lock`](Self::try_lock).
            pub fn lock_timeout(&self, timeout: Duration) -> Result<LockGuard<'_, $guard>, LockError> {
                self.guard(LockWait::at_most(timeout), false)
            }

            /// Locks it; waits until `deadline` at most.
            ///
            /// # Errors
            /// As [`try_lock`](Self::try_lock).
            pub fn lock_deadline(&self, deadline: Instant) -> Result<LockGuard<'_, $guard>, LockError> {
                self.guard(LockWait::Until(deadline), false)
            }

            /// As [`recover`](Self::recover); waits at most `timeout`.
            ///
            /// # Errors
            /// As [`try_lock`](Self::try_lock), without `OwnerDied`.
            pub fn recover_timeout(&self, timeout: Duration) -> Result<LockGuard<'_, $guard>, LockError> {
                self.guard(LockWait::at_most(timeout), true)
            }

            /// Locks it also when a process died while it held the lock; waits as long as it takes.
            ///
            /// [`LockGuard::died`] says which process died. Dropping the guard says that the data is as it
            /// should be.
            ///
            /// # Errors
            /// As [`lock`](Self::lock), without `OwnerDied`.
            pub fn recover(&self) -> Result<LockGuard<'_, $guard>, LockError> {
                self.guard(LockWait::Forever, true)
            }
        }

        impl<T: Pod + Send> Clone for $name<T> {
            fn clone(&self) -> Self {
                let ($locked, $len) = (self.0.clone(), $count(self));
                $make
            }
        }

        impl<T: Pod + Send> fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let name = std::any::type_name::<T>();
                let len: usize = $count(self);
                write!(f, "{}<{name}>({len} in {:?})", stringify!($name), self.0.hold)
            }
        }

        impl<T: Pod + Send> Serialize for $name<T> {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                send(&self.0.hold, $what, s)
            }
        }

        impl<'de, T: Pod + Send> Deserialize<'de> for $name<T> {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                receive($what, d, |hold| {
                    let $len =
                        Header::check::<T>(&hold, $form, if $form == Form::Value { Some(1) } else { None })?;
                    let $locked = Locked::new(hold);
                    Ok($make)
                })
            }
        }
    };
}

locking!(Value, T, Form::Value, "a Value", |locked, _len| Self(locked, PhantomData), |_: &Self| 1);
locking!(Array, [T], Form::Array, "an Array", |locked, len| Self(locked, len, PhantomData), |a: &Self| a.1);
