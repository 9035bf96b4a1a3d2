//! `cargo xtask bench`: builds and runs the benchmarks of `benches/`.

use crate::args::Args;
use crate::session::Session;

pub(crate) fn run(args: &mut Args) -> Result<bool, String> {
    let grow = args.flag("--grow");
    let features = match (grow, args.flag("--peers")) {
        (true, _) => &["--features", "grow"][..],
        (false, true) => &["--features", "peers"][..],
        (false, false) => &[],
    };
    let mut session = Session::new();
    let mut command = session.cargo(&["run", "--release", "--manifest-path", "benches/Cargo.toml"]);
    command.args(features).arg("--").args(grow.then_some("--grow")).args(args.rest());
    Ok(session.run(&mut command).ok)
}
