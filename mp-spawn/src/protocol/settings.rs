//! Settings that processes inherit from the process that starts them: start method, command, key, level of
//! the log.

#[cfg(feature = "authkey")]
use mp_core::AuthKey;

use crate::protocol::command::CommandLine;
use crate::protocol::fields::{FieldReader, put_bytes, put_number, put_option};

/// Settings that processes inherit from the process that starts them.
#[derive(Clone, Debug)]
pub(crate) struct InheritedSettings {
    /// Index of the start method.
    pub(crate) method: usize,
    pub(crate) fork: bool,
    /// Command that processes are started by, if it isn't the running program.
    pub(crate) command: Option<CommandLine>,
    /// Secret of the family.
    #[cfg(feature = "authkey")]
    pub(crate) key: Option<AuthKey>,
    /// Level of the logger that prints.
    pub(crate) log: Option<String>,
}

impl InheritedSettings {
    /// Appends the settings to a message.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_number(out, self.method as u64);
        out.push(self.fork.into());
        put_option(out, self.command.as_ref(), |out, words| words.put(out));
        #[cfg(feature = "authkey")]
        put_option(out, self.key.as_ref(), |out, key| put_bytes(out, key.as_ref()));
        put_option(out, self.log.as_deref(), |out, level| put_bytes(out, level.as_bytes()));
    }

    /// Reads settings from a message.
    #[inline]
    pub(crate) fn read(fields: &mut FieldReader<'_>) -> Option<InheritedSettings> {
        Some(InheritedSettings {
            method: fields.size()?,
            fork: fields.flag()?,
            command: fields.option(CommandLine::read)?,
            #[cfg(feature = "authkey")]
            key: fields.option(FieldReader::bytes)?.map(AuthKey::from),
            log: fields.option(FieldReader::text)?,
        })
    }

    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn example() -> InheritedSettings {
        InheritedSettings {
            method: 1,
            fork: true,
            command: CommandLine::command(["a", "b"]),
            #[cfg(feature = "authkey")]
            key: Some(b"secret".as_slice().into()),
            log: Some("INFO".to_string()),
        }
    }
}
