//! Choice of the order of streams by the first process that uses a device. Other processes, which would have
//! chosen another order, use the chosen order, or get an error if they don't support it.

use mp_cuda::{CudaEvent, CudaStream, Device, order};
use mp_cuda_sim::session::Session;

use crate::support::{Outcome, join, nothing_found, run, setup, with_gpu};

fn which((): ()) -> Outcome<String> {
    Ok(format!("{:?}", order(&Device::new(0)?)?))
}

fn why_not((): ()) -> Outcome<String> {
    let device = Device::new(0)?;
    let (stream, event) = (CudaStream::new(&device)?, CudaEvent::new()?);
    let error = event.record(&stream).unwrap_err();
    assert!(event.query()?, "nothing was recorded");
    // The same error is returned each time.
    assert_eq!(order(&device).unwrap_err().to_string(), error.to_string());
    Ok(error.to_string())
}

#[test]
fn event_order_is_chosen_without_host_registration() {
    let session = setup().set("PROFILE", "mig").start().unwrap();
    let rule = "fail=cuMemHostRegister_v2:1:NOT_SUPPORTED";
    let first = with_gpu(&session).env("MP_CUDA_SIM_INJECT", rule).spawn(which, ()).unwrap();
    assert_eq!(join(first), "IpcEvents");
    assert_eq!(run(&session, which, ()), "IpcEvents", "could register, and uses the chosen order");
    nothing_found(&session);
}

fn refused(session: &Session, words: &[&str]) {
    let why = run(session, why_not, ());
    assert!(words.iter().all(|word| why.contains(word)), "{why}");
    nothing_found(session);
}

#[test]
fn missing_driver_ability_is_named_in_the_error() {
    let session = setup().start().unwrap();
    assert_eq!(run(&session, which, ()), "Clocks");
    for missing in ["cuStreamWriteValue64_v2", "cuStreamWaitValue64_v2"] {
        refused(&setup().hide(missing).start().unwrap(), &["words", "give all the same driver"]);
    }
    let without_words = || setup().set("PROFILE", "no-memops");
    assert_eq!(run(&without_words().start().unwrap(), which, ()), "IpcEvents");
    let words = ["events between processes", "give all the same driver"];
    refused(&without_words().hide("cuLaunchHostFunc").start().unwrap(), &words);
}

#[test]
fn refused_host_registration_is_an_error() {
    let session = setup().start().unwrap();
    assert_eq!(run(&session, which, ()), "Clocks");
    let rule = "fail=cuMemHostRegister_v2:1:NOT_PERMITTED;fail=cuMemHostRegister_v2:2:NOT_PERMITTED";
    let process = with_gpu(&session).env("MP_CUDA_SIM_INJECT", rule).spawn(why_not, ());
    let why = join(process.unwrap());
    assert!(why.contains("doesn't let it reach them") && why.contains("ulimit -l"), "{why}");
    nothing_found(&session);
}
