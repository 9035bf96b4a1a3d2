//! Step `alone`: each library crate builds and passes its tests by itself, and every set of features builds; with one
//! sharing strategy alone, processes pass the same tests.

use crate::layers::{self, FACADE, LAYERS};
use crate::session::{Outcome, Session};

/// Features of which one alone has to do.
const STRATEGIES: [&str; 2] = ["file_descriptor", "file_system"];

/// Features that only add something on top: alone and together, not in every set.
const ADDED: [&str; 4] = ["ndarray", "bytes", "pool", "indicatif"];

pub(crate) fn run(session: &mut Session) -> Outcome {
    for (name, _) in LAYERS.iter().filter(|(name, _)| *name != FACADE) {
        session.run(&mut session.cargo(&["test", "--quiet", "--no-fail-fast", "-p", name]));
    }
    for strategy in STRATEGIES {
        let only = ["--no-default-features", "--features", strategy];
        session.run(session.cargo(&["test", "--quiet", "--no-fail-fast", "-p", "mp-core"]).args(only));
        let mut tests = session.cargo(&["test", "--quiet", "--no-fail-fast", "-p", "mp-tests"]);
        for test in ["conformance", "file_system", "file_system_deaths", "sharing", "queue_deaths"] {
            // Some are about names.
            if strategy == "file_system" || !test.starts_with("file_system") {
                tests.args(["--test", test]);
            }
        }
        session.run(tests.args(only));
    }
    match features() {
        Ok(features) => {
            let added = ADDED.map(str::to_owned).into_iter().chain([ADDED.join(",")]);
            for set in powerset(&features).into_iter().chain(added) {
                let words = ["check", "--quiet", "-p", FACADE, "--no-default-features", "--features", &set];
                session.run(&mut session.cargo(&words));
            }
        }
        Err(message) => session.fail(message),
    }
    session.outcome()
}

/// The facade's features, without `default` and [`ADDED`].
fn features() -> Result<Vec<String>, String> {
    let packages = layers::packages(None)?;
    let facade = packages.into_iter().find(|package| package.name == FACADE).ok_or("no root package")?;
    Ok(facade
        .features
        .into_iter()
        .filter(|name| name != "default" && !ADDED.contains(&name.as_str()))
        .collect())
}

/// Every subset, as `--features` takes it.
fn powerset(features: &[String]) -> Vec<String> {
    let subset = |bits: usize| {
        let chosen = features.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1);
        chosen.map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(",")
    };
    (0..1 << features.len()).map(subset).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subset_once() {
        let names = ["a".to_owned(), "b".to_owned()];
        assert_eq!(powerset(&names), ["", "a", "b", "a,b"]);
        assert_eq!(powerset(&[]), [""]);
    }
}
