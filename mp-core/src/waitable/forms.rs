//! Variants of a blocking method: without blocking, with a time-out, with a deadline.

/// Generates variants of a blocking method, with their documentation. The given expression implements all of
/// them. It gets the handle, and a [`Wait`](crate::Wait) that says how long the variant may block.
///
/// ```
/// use std::time::Duration;
/// use mp_core::Wait;
///
/// struct Door(bool);
///
/// impl Door {
///     fn pass_wait(&self, name: &str, wait: Wait) -> Result<String, String> {
///         if self.0 { Ok(format!("{name} is in")) } else { Err(format!("{name}, {wait:?}")) }
///     }
///
///     mp_core::forms! {
///         "Passes the door": pass(name: &str) -> Result<String, String>, or "a text";
///         |door, wait| door.pass_wait(name, wait);
///         #[inline] never try_pass;
///         at_most pass_timeout;
///         until pass_deadline;
///     }
/// }
///
/// assert_eq!(Door(true).pass_timeout("Ada", Duration::ZERO).as_deref(), Ok("Ada is in"));
/// assert_eq!(Door(false).try_pass("Ada").unwrap_err(), "Ada, Never");
/// ```
///
/// The first line of the input has, in this order: the effect of the method, with which its documentation
/// begins; the name of the blocking method; its arguments without the time (arguments that follow the time
/// are written after `;`); its return type; and the documented error for a time-out. Type parameters are
/// written in brackets before the arguments: `send[T: Message](value: T)`.
#[doc(hidden)]
#[macro_export]
macro_rules! forms {
    (
        $does:literal: $of:ident $([$($types:tt)*])? ($($arguments:tt)*) -> $out:ty, or $late:literal;
        |$handle:ident, $wait:ident| $core:expr;
        $($(#[$attribute:meta])* $form:ident $name:ident;)+
    ) => {
        $crate::forms! {
            @each [$([$(#[$attribute])*] $form $name)+]
            ($does, $of, $late) [$($($types)*)?] ($($arguments)*) ($out) ($handle $wait $core)
        }
    };
    (@each [$($attributes:tt $form:ident $name:ident)+] $doc:tt $types:tt $arguments:tt $out:tt $core:tt) => {
        $($crate::forms! { @ $form $attributes $name $doc $types $arguments $out $core })+
    };
    (@never $($rest:tt)*) => {
        $crate::forms! {
            @method ". Does not block. See [`" "If the call would block, returns "
            [] ($crate::Wait::Never) $($rest)*
        }
    };
    (@at_most $($rest:tt)*) => {
        $crate::forms! {
            @method ". Blocks for at most `timeout`. See [`" "If the time is over, returns "
            [timeout: ::std::time::Duration] ($crate::Wait::at_most(timeout)) $($rest)*
        }
    };
    (@until $($rest:tt)*) => {
        $crate::forms! {
            @method ". Blocks until `deadline` at most. See [`" "If the time is over, returns "
            [deadline: ::std::time::Instant] ($crate::Wait::Until(deadline)) $($rest)*
        }
    };
    (
        @method $blocks:literal $over:literal [$($time:ident: $of_time:ty)?] ($limit:expr)
        [$($attributes:tt)*] $name:ident ($does:literal, $of:ident, $late:literal) [$($types:tt)*]
        ($($before:ident: $of_before:ty),* $(; $($after:ident: $of_after:ty),*)?) ($out:ty)
        ($handle:ident $wait:ident $core:expr)
    ) => {
        #[doc = concat!($does, $blocks, stringify!($of), "`](Self::", stringify!($of), ").")]
        #[doc = ""]
        #[doc = "# Errors"]
        #[doc = concat!($over, $late, ".")]
        #[doc = concat!("Otherwise, returns the same errors as [`", stringify!($of), "`](Self::",
                        stringify!($of), ").")]
        $($attributes)*
        #[track_caller]
        pub fn $name<$($types)*>(
            &self,
            $($before: $of_before,)*
            $($time: $of_time,)?
            $($($after: $of_after),*)?
        ) -> $out {
            let ($handle, $wait) = (self, $limit);
            $core
        }
    };
}
