//! The gate at the socket: what was let through and then held up is asked again, and of a refused request no byte leaves.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicI32, Ordering},
};

use exuvia_write::{Outcome, Writer};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Config};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::{map, read, set_apple, writer};

/// A server that answers every request with the same object, and everything that it was sent, by connection.
async fn server() -> (Config, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let heard = Arc::new(Mutex::new(Vec::<String>::new()));
    let notes = heard.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let notes = notes.clone();
            tokio::spawn(async move {
                let place = {
                    let mut notes = notes.lock().unwrap();
                    notes.push(String::new());
                    notes.len() - 1
                };
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut bytes).await {
                    // Requests this small come in one piece.
                    notes.lock().unwrap()[place].push_str(&String::from_utf8_lossy(&bytes[..count]));
                    let body = map("2", &json!({"apple": "3"})).to_string();
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            });
        }
    });
    (Config::new(url.parse().unwrap()), heard)
}

/// A writer whose gate lets so many questions pass, and what came of its requests.
fn asked_at_most(times: i32) -> (Writer, Arc<AtomicI32>, Arc<Mutex<Vec<Outcome>>>) {
    let left = Arc::new(AtomicI32::new(times));
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let (count, told) = (left.clone(), outcomes.clone());
    let writer = writer()
        .gate(move |_| {
            let open = count.fetch_sub(1, Ordering::SeqCst) > 0;
            open.then_some(()).ok_or_else(|| "deposed".to_owned())
        })
        .observe(move |report| told.lock().unwrap().push(report.outcome));
    (writer, left, outcomes)
}

#[tokio::test]
async fn a_gate_that_closes_on_the_way_to_the_socket_lets_no_byte_out() {
    // Asked by the writer, by the request on its connection, by the socket.
    for let_through in 0..=2 {
        let (config, heard) = server().await;
        let (writer, left, outcomes) = asked_at_most(let_through);
        let api: Api<ConfigMap> = Api::namespaced(writer.connect(config).unwrap(), "shop");
        let object = read("1", &json!({}));
        let error = writer.patch(&api, &object, set_apple("3")).await.unwrap_err();
        assert_eq!(error.reason(), "GateClosed", "{let_through}: {error:?}");
        assert_eq!(*outcomes.lock().unwrap(), [Outcome::Gated], "{let_through}");

        // Reads are nobody's business; and when the gate is open again, so is the way.
        api.get("prices").await.unwrap();
        left.store(3, Ordering::SeqCst);
        writer.patch(&api, &object, set_apple("3")).await.unwrap();
        let heard = heard.lock().unwrap().concat();
        let methods: Vec<&str> = heard
            .lines()
            .filter_map(|line| line.strip_suffix(" HTTP/1.1")?.split(' ').next())
            .map(|method| method.trim_start_matches(|c: char| !c.is_ascii_uppercase()))
            .collect();
        assert_eq!(methods, ["GET", "PATCH"], "{let_through}: {heard}");
    }
}

#[tokio::test]
async fn a_connection_that_carried_a_write_carries_reads_of_a_follower_afterwards() {
    let (config, heard) = server().await;
    let (writer, left, _) = asked_at_most(3);
    let api: Api<ConfigMap> = Api::namespaced(writer.connect(config).unwrap(), "shop");
    writer
        .patch(&api, &read("1", &json!({})), set_apple("3"))
        .await
        .unwrap();
    assert_eq!(left.load(Ordering::SeqCst), 0, "asked three times");
    api.get("prices").await.unwrap();
    assert_eq!(heard.lock().unwrap().len(), 1, "one connection");
}
