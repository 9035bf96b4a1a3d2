//! Sockets between programs.

use mp::connection::SocketOptions;
use mp::{Connection, Listener, Queue, Tensor, connect};
use mp_tests::DEADLINE;

use crate::says;

fn name(what: &str) -> String {
    format!("@mp-mistakes-{what}-{}", std::process::id())
}

fn both(what: &str) -> (Connection, Connection) {
    let listener = Listener::bind(name(what)).unwrap();
    let client = connect(name(what)).unwrap();
    (client, listener.accept_timeout(DEADLINE).unwrap().unwrap())
}

/// Two programs define one enum each.
mod client {
    #[derive(serde::Serialize, serde::Deserialize, Debug)]
    pub(super) enum Request {
        Stop,
    }
}
mod server {
    #[derive(serde::Serialize, serde::Deserialize, Debug)]
    pub(super) enum Request {
        Stop,
    }
}

#[test]
fn two_programs_define_one_enum_each() {
    let (client, server) = both("enums");
    client.send(client::Request::Stop).unwrap();
    let both_names = ["sockets::client::Request", "sockets::server::Request", "crate that both programs use"];
    says(server.recv::<server::Request>().unwrap_err(), &both_names);
    drop(server);
    let error = client.recv::<u8>().unwrap_err();
    assert!(error.is_disconnected());
    says(&error, &both_names);
    says(client.recv::<u8>().unwrap_err(), &both_names);
    let error = client.send(client::Request::Stop).unwrap_err();
    assert!(error.is_disconnected());
    says(&error, &both_names);
}

#[test]
fn a_send_hears_of_the_other_type_first() {
    let (client, server) = both("send-first");
    client.send(client::Request::Stop).unwrap();
    server.send(17_u8).unwrap();
    server.recv::<server::Request>().unwrap_err();
    drop(server);
    says(client.send(1).unwrap_err(), &["client::Request", "server::Request"]);
    assert_eq!(client.recv::<u8>().unwrap(), 17, "what was sent before is there still");
    says(client.recv::<u8>().unwrap_err(), &["client::Request", "server::Request"]);
}

#[test]
fn the_other_program_has_ended() {
    let (client, server) = both("ended");
    drop(server);
    let error = client.recv::<u8>().unwrap_err().to_string();
    says(&error, &["other side is gone"]);
    assert!(!error.contains("channel"), "{error}");
    says(client.send(1).unwrap_err(), &["other side is gone"]);
}

#[test]
fn a_tensor_is_sent_to_another_program() {
    let (client, _server) = both("tensor");
    let tensor = Tensor::<f32>::zeros([3]).unwrap().freeze();
    says(client.send(tensor).unwrap_err(), &["leave this memory", "send their contents"]);
    let queue = Queue::<u8>::bounded(1).unwrap();
    says(client.send(queue).unwrap_err(), &["leave this memory", "send their contents"]);
}

#[test]
fn no_program_listens() {
    says(connect(name("silence")).unwrap_err(), &["connecting to", "mp-mistakes-silence", "Listener"]);
    says(connect("/tmp/mp-mistakes-no-such-file").unwrap_err(), &["connecting to", "Listener"]);
}

#[test]
fn two_listeners_at_one_address() {
    let _first = Listener::bind(name("twice")).unwrap();
    says(
        Listener::bind(name("twice")).unwrap_err(),
        &["listening at", "mp-mistakes-twice", "another Listener", "another address"],
    );
}

#[test]
fn an_address_that_is_too_long() {
    says(Listener::bind("/tmp/".to_string() + &"x".repeat(200)).unwrap_err(), &["107", "bytes"]);
}

#[test]
fn another_key_or_none() {
    let key = |key: &str| SocketOptions::new().authkey(key).handshake_timeout(DEADLINE);
    let meet = |options: SocketOptions, what: &str| {
        let listener = key("mine").listen(name(what)).unwrap();
        let address = name(what);
        let client = std::thread::spawn(move || match options.connect(address) {
            Ok(client) => drop(client.recv_timeout::<u8>(DEADLINE)),
            Err(error) => drop(error),
        });
        let error = listener.accept_timeout(DEADLINE).map(drop).unwrap_err();
        drop(listener);
        client.join().unwrap();
        error
    };
    says(meet(key("theirs"), "key"), &["another authentication key", "use the same key on both sides"]);
    says(meet(SocketOptions::new(), "no-key"), &["only this side has an", "use the same key on both sides"]);
}

#[test]
fn a_message_that_is_too_long() {
    let listener = Listener::bind(name("long")).unwrap();
    let client = SocketOptions::new().max_message(10).connect(name("long")).unwrap();
    says(client.send(vec![1_u8; 100]).unwrap_err(), &["bytes", "10 is the limit", "max_message"]);
    drop(listener);
}
