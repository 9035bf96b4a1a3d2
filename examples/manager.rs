//! A word count that several processes build in one object, without a file or a lock. A killed worker costs
//! only its own words.
//!
//! `cargo run --release --example manager`

use std::collections::HashMap;

use mp::manager::{CallError, Dict};
use mp::{Manager, Process, Proxy, closure};

const TEXT: &str = "the quick brown fox jumps over the lazy dog and the dog sleeps";

/// Object of this program that lives in the server. It is never sent, and need not be `Send`.
#[derive(Default)]
struct Counter {
    words: HashMap<String, u64>,
    reports: u32,
}

impl Counter {
    fn add(&mut self, words: Vec<String>) -> u32 {
        words.into_iter().for_each(|word| *self.words.entry(word).or_default() += 1);
        self.reports += 1;
        self.reports
    }
}

fn count((rounds, counter, notes): (u32, Proxy<Counter>, Dict<u32, String>)) -> Result<(), CallError> {
    for _ in 0..rounds {
        let words = TEXT.split(' ').map(String::from).collect();
        counter
            .call_with(closure!([] |counter: &mut Counter, words: Vec<String>| counter.add(words)), words)?;
    }
    notes.insert(std::process::id(), format!("counted {rounds} times"))?;
    Ok(())
}

fn main() -> mp::AnyResult<()> {
    let manager = Manager::start()?;
    let counter = manager.create(Counter::default)?;
    let notes = manager.dict::<u32, String>()?;

    let workers =
        [100, 200, 300].map(|rounds| Process::spawn(count, (rounds, counter.clone(), notes.clone())));
    let endless = Process::spawn(count, (u32::MAX, counter.clone(), notes.clone()))?;
    for worker in workers {
        worker?.join()?;
    }
    endless.kill()?; // wherever it is: in a call, or between two
    println!("{}", endless.join().unwrap_err());
    for (pid, note) in notes.iter()? {
        println!("process {pid} {note}");
    }

    // The caller gets the panic, and the object lives on.
    let word = "zebra".to_string();
    let missing = counter.call(closure!([word] |counter: &mut Counter| counter.words[word]));
    println!("{}", missing.unwrap_err());

    let (words, reports) =
        counter.call(closure!([] |counter: &mut Counter| (counter.words.clone(), counter.reports)))?;
    println!("{reports} reports; \"the\" came {} times", words["the"]);
    assert!(reports >= 600 && words["the"] == 3 * u64::from(reports));

    drop(counter); // the last proxy: it is freed in the server
    manager.shutdown(std::time::Duration::from_secs(1))?;
    let error = notes.len().unwrap_err();
    println!("{error}");
    assert!(error.is_server_gone());
    Ok(())
}
