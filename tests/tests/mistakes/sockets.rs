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

/// Two programs define an enum of the same name.
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
fn enum_mismatch_error_names_both_programs() {
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
fn send_reports_a_type_mismatch_before_a_receive() {
    let (client, server) = both("send-first");
    client.send(client::Request::Stop).unwrap();
    server.send(17_u8).unwrap();
    server.recv::<server::Request>().unwrap_err();
    drop(server);
    says(client.send(1).unwrap_err(), &["client::Request", "server::Request"]);
    assert_eq!(client.recv::<u8>().unwrap(), 17, "the earlier message can still be received");
    says(client.recv::<u8>().unwrap_err(), &["client::Request", "server::Request"]);
}

#[test]
fn ended_peer_error_says_disconnected() {
    let (client, server) = both("ended");
    drop(server);
    let error = client.recv::<u8>().unwrap_err().to_string();
    says(&error, &["other side is gone"]);
    assert!(!error.contains("channel"), "{error}");
    says(client.send(1).unwrap_err(), &["other side is gone"]);
}

#[test]
fn tensor_over_socket_error_suggests_contents() {
    let (client, _server) = both("tensor");
    let tensor = Tensor::<f32>::zeros([3]).unwrap().freeze();
    says(client.send(tensor).unwrap_err(), &["leave this memory", "send their contents"]);
    let queue = Queue::<u8>::bounded(1).unwrap();
    says(client.send(queue).unwrap_err(), &["leave this memory", "send their contents"]);
}

#[test]
fn missing_listener_error_names_the_address() {
    says(connect(name("silence")).unwrap_err(), &["connecting to", "mp-mistakes-silence", "Listener"]);
    says(connect("/tmp/mp-mistakes-no-such-file").unwrap_err(), &["connecting to", "Listener"]);
}

#[test]
fn second_listener_error_names_the_address() {
    let _first = Listener::bind(name("twice")).unwrap();
    says(
        Listener::bind(name("twice")).unwrap_err(),
        &["listening at", "mp-mistakes-twice", "another Listener", "another address"],
    );
}

#[test]
fn long_address_error_names_the_limit() {
    says(Listener::bind("/tmp/".to_string() + &"x".repeat(200)).unwrap_err(), &["107", "bytes"]);
}

#[test]
fn socket_key_mismatch_error_names_the_side() {
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
fn long_socket_message_error_names_max_message() {
    let listener = Listener::bind(name("long")).unwrap();
    let client = SocketOptions::new().max_message(10).connect(name("long")).unwrap();
    says(client.send(vec![1_u8; 100]).unwrap_err(), &["bytes", "10 is the limit", "max_message"]);
    drop(listener);
}
