//! Step `example`: the job that the README opens with, made short.

use std::path::Path;

use crate::session::{Outcome, Session};

pub(crate) fn run(session: &mut Session) -> Outcome {
    if !Path::new("examples/hogwild.rs").exists() && !Path::new("examples/hogwild/main.rs").exists() {
        return Outcome::Skipped("there is no example hogwild yet".to_owned());
    }
    let words = ["run", "--release", "--example", "hogwild", "--", "--workers", "2", "--epochs", "3"];
    let ran = session.run(&mut session.cargo(&words));
    if ran.ok && !ran.last_line.contains("test accuracy") {
        session
            .fail(format!("the last line of hogwild must say `test accuracy`; it says `{}`", ran.last_line));
    }
    session.outcome()
}
