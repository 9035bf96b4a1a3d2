//! Named files of the strategy `file_system`. Programs that must begin without shared memory are this
//! program, started again.

mod deaths;
mod names;
mod namespaces;
mod pools;

use mp::Tensor;
use mp_core::inject;
use mp_tests::scratch::{files_in, scenario};
use rustix::process::Signal;

const KIB: usize = 1 << 10;

/// Entry of the programs that `Scratch::program` starts. Not a test.
#[test]
fn helper() {
    let Some((what, at, directory)) = scenario() else { return };
    match &*what {
        "use" => {
            files_in(&directory);
            Tensor::<u8>::full([100 * KIB], 1).unwrap();
        }
        "small" => names::small_directory(&directory),
        "read-only" => {
            files_in(&directory);
            println!("{}", Tensor::<u8>::zeros([1]).map(drop).unwrap_err());
        }
        "file-size" => names::file_size(&directory),
        "quota" => names::quota(&directory),
        "huge" => names::few_huge_pages(&directory),
        "killed" => {
            inject::arm(at, Signal::KILL.as_raw());
            deaths::first_use(&directory);
        }
        "child-killed" => deaths::child_at(&directory, at, Signal::KILL),
        "child-stopped" => deaths::child_at(&directory, at, Signal::STOP),
        "all-killed" => deaths::all_killed(&directory),
        "neighbour" => {
            files_in(&directory);
            namespaces::neighbour(at == 1);
        }
        other => panic!("{other}"),
    }
}
