//! Programs that the compiler must reject, so that safe code can't send a tensor twice, keep a sent value,
//! make a handle out of numbers, or name a function that other processes don't have. The messages of the
//! compiler are compared with files, because they are the first thing that users read.
//!
//! Messages differ between compilers, so they are compared only for the compiler that wrote the files. With
//! other compilers, this test is skipped.
//!
//! `TRYBUILD=overwrite cargo test -p mp-compile-fail` writes new files.

#[path = "../cases/allowed.rs"]
mod allowed;
#[allow(unreachable_pub, reason = "it is public where it is a library's")]
#[path = "../../harness/src/skip.rs"]
mod skip;

/// Runs the counterpart of the cases, a program that must compile. So the cases are not all rejected for an
/// unrelated reason. The program is compiled into this test, because linking it as a case would compile all
/// libraries again.
#[test]
fn allowed_program_compiles_and_runs() {
    allowed::main();
}

#[test]
fn forbidden_programs_do_not_compile() {
    const COMPILER: &str = "rustc 1.95.";
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = std::process::Command::new(rustc).arg("--version").output().expect("rustc runs").stdout;
    let version = String::from_utf8_lossy(&version);
    if !version.starts_with(COMPILER) {
        skip::skip(format_args!("the messages were written with {COMPILER}x, this is {version}"));
        return;
    }
    let cases = trybuild::TestCases::new();
    for refused in [
        "argument_that_derives_message",
        "argument_that_is_borrowed",
        "argument_without_serde",
        "as_an_argument",
        "async_worker",
        "attached_by_hand",
        "batch_of_an_enum",
        "batch_with_a_foreign_column",
        "batch_with_parameters",
        "batch_without_names",
        "cloned",
        "closure_captures_a_file",
        "closure_captures_a_string_in_spawn",
        "closure_captures_an_exclusive_tensor",
        "closure_captures_an_rc",
        "closure_uses_an_unlisted_variable",
        "envelope_from_raw",
        "frozen_is_written",
        "handles_by_constructor",
        "handles_by_literal",
        "in_a_plain_tuple",
        "in_a_serde_struct",
        "kept_after_freezing",
        "kept_after_sending",
        "kept_after_unlocking",
        "lock_guards_in_another_thread",
        "lock_of_a_struct",
        "lock_of_a_vec",
        "message_and_serde",
        "message_as_bytes_of_a_text",
        "message_of_a_union",
        "message_with_a_foreign_field",
        "message_with_an_unknown_option",
        "outcome_that_is_not_send",
        "own_element",
        "pool_map_captures_a_string",
        "pool_starmap_captures_a_string",
        "pool_state_captures_a_string",
        "pool_task_captures_a_string",
        "queue_of_borrowed_text",
        "queue_of_unsendable_values",
        "results_that_are_forgotten",
        "sent_twice",
        "serialized",
        "supervised_argument_that_moves",
        "tensor_of_bool",
        "value_of_bool",
        "views_beyond_their_piece",
        "views_that_borrow",
        "views_that_overlap",
        "worker_with_other_parameters",
    ] {
        cases.compile_fail(format!("cases/{refused}.rs"));
    }
}
