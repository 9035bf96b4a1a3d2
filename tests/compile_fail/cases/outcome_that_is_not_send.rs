//! A thread of the caller receives the result, so the result must be `Send`.
use std::marker::PhantomData;

#[derive(serde::Serialize, serde::Deserialize)]
struct Local {
    steps: usize,
    here: PhantomData<*const u8>,
}

impl mp::message::PlainOutcome for Local {}

fn plain(_rank: usize, _: ()) -> Local {
    Local { steps: 3, here: PhantomData }
}

fn fallible(_rank: usize, _: ()) -> Result<Local, String> {
    Ok(Local { steps: 3, here: PhantomData })
}

fn several(_rank: usize, _: ()) -> Vec<Local> {
    Vec::new()
}

fn main() {
    let _ = mp::spawn(plain, (), 2);
    let _ = mp::spawn(fallible, (), 2);
    let _ = mp::spawn(several, (), 2);
}
