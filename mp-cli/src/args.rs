//! Arguments of the command.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{CommandFactory as _, Parser, Subcommand};

/// Shows running programs of multiproc, and explains why a program hangs.
///
/// Reads the memory of your own programs from outside. It changes nothing and stops no process.
#[derive(Parser, Debug)]
#[command(name = "mp", version)]
pub(crate) struct Arguments {
    /// Print JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Repeat, every second or at this interval.
    #[arg(long, global = true, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    pub(crate) watch: Option<f64>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// List the programs of this user.
    Ls,
    /// Show what a process waits for, and whether the wait can end. Exits with 3 if it can't.
    Why {
        /// Process ID, name of a process such as rank-3, or part of a program's command line.
        target: String,
    },
    /// Show the processes, queues, locks and memory of a program.
    Show {
        /// Program, named like the target of `why`, or file of `record`. Optional if only one program runs.
        target: Option<String>,
    },
    /// Show a program live, in the terminal: its processes, queues, locks, and hanging processes.
    Top {
        /// Program, named like the target of `why`. Without it, `top` lists the programs if several run.
        target: Option<String>,
    },
    /// Show queues: their messages, and how long puts and gets have waited.
    Queue {
        /// Number or name of the queue. Without it, all queues are shown.
        object: Option<ObjectId>,
        /// Program, named like the target of `why`. Optional if only one program runs.
        #[arg(short, long)]
        program: Option<String>,
    },
    /// Show locks, events, barriers and other objects.
    Lock {
        /// Number or name of the object. Without it, all objects are shown.
        object: Option<ObjectId>,
        /// Program, named like the target of `why`. Optional if only one program runs.
        #[arg(short, long)]
        program: Option<String>,
    },
    /// Show pools: their tasks, and the activity of each worker.
    Pool {
        /// Number or name of the pool. Without it, all pools are shown.
        object: Option<ObjectId>,
        /// Program, named like the target of `why`. Optional if only one program runs.
        #[arg(short, long)]
        program: Option<String>,
    },
    /// Show memory of tensors: its size, and the processes and messages that hold it.
    Tensor {
        /// Number of the block. Without it, the largest blocks are shown.
        object: Option<ObjectId>,
        /// Program, named like the target of `why`. Optional if only one program runs.
        #[arg(short, long)]
        program: Option<String>,
    },
    /// Write the current state of a program to a file, for a bug report.
    Record {
        /// File to write.
        file: PathBuf,
        /// Program, named like the target of `why`. Optional if only one program runs.
        #[arg(short, long)]
        program: Option<String>,
    },
    /// Remove files that crashed programs of this user have left in a sharing directory.
    Gc {
        /// Only list the files.
        #[arg(long)]
        dry_run: bool,
        /// Sharing directory. The default is the default directory of programs.
        #[arg(long)]
        directory: Option<PathBuf>,
    },
    /// Print the manual page of mp or of one of its commands, in the format of man.
    Man {
        /// Command, such as `why`.
        command: Option<String>,
    },
    /// Print completions for a shell.
    Completions {
        /// Shell.
        shell: clap_complete::Shell,
    },
}

pub(crate) fn command() -> clap::Command {
    Arguments::command()
}

/// Maximum length of a name in bytes.
const NAME_BYTES: usize = 32;

/// Number or name of a queue, pool or another object.
#[derive(Clone, Debug)]
pub(crate) struct ObjectId(String);

impl ObjectId {
    pub(crate) fn is(&self, block: u32, name: &str) -> bool {
        // Names are cut.
        let ends = self.0.char_indices().map(|(at, c)| at + c.len_utf8());
        let cut = &self.0[..ends.take_while(|end| *end <= NAME_BYTES).last().unwrap_or(0)];
        self.number() == Some(block) || !name.is_empty() && cut == name
    }

    pub(crate) fn number(&self) -> Option<u32> {
        self.0.strip_prefix('#').unwrap_or(&self.0).parse().ok()
    }
}

impl FromStr for ObjectId {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.into()))
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.0)
    }
}
