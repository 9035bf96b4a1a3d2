//! Settings that processes inherit from the process that starts them: start method, command, key, level of
//! the log.

#[cfg(feature = "authkey")]
use mp_core::AuthKey;

use crate::protocol::command::CommandLine;
use crate::protocol::fields::fields;
#[cfg(any(test, feature = "fuzz"))]
use crate::start_method::StartMethod;
use crate::start_method::StartSettings;

/// Settings that processes inherit from the process that starts them.
#[derive(Clone, Debug)]
pub(crate) struct InheritedSettings {
    pub(crate) start: StartSettings,
    /// Command that processes are started by, if it isn't the running program.
    pub(crate) command: Option<CommandLine>,
    /// Secret of the family.
    #[cfg(feature = "authkey")]
    pub(crate) key: Option<AuthKey>,
    /// Level of the logger that prints.
    pub(crate) log: Option<String>,
}

impl InheritedSettings {
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn example() -> InheritedSettings {
        InheritedSettings {
            start: StartSettings { method: StartMethod::ForkServer, fork: true },
            command: CommandLine::command(["a", "b"]),
            #[cfg(feature = "authkey")]
            key: Some(b"secret".as_slice().into()),
            log: Some("INFO".to_string()),
        }
    }
}

fields!(InheritedSettings {
    start,
    command,
    #[cfg(feature = "authkey")]
    key,
    log,
});
