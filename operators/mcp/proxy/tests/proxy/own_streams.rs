//! Streams whose socket the proxy reads itself: what comes in chunks of any shape arrives as it should, or is seen to be cut.

use http_body_util::BodyExt;
use mcp_proxy::{Backend, Settings};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::harness::{Client, Running, get, soon};

/// A proxy before a server that answers each connection with these bytes, piece by piece, and then closes it or keeps it open.
async fn before(pieces: &'static [&'static str], closes: bool) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                stream.set_nodelay(true).unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await?);
                }
                for piece in pieces {
                    stream.write_all(piece.as_bytes()).await?;
                    tokio::task::yield_now().await;
                }
                if !closes {
                    let _ = stream.read_u8().await; // until the proxy closes it
                }
                Ok::<_, std::io::Error>(())
            });
        }
    });
    Running::start(Settings::default(), [Backend::from_url(&url).unwrap()]).await
}

/// What came, and whether it came to its end.
async fn read(mut client: Client) -> (String, bool) {
    let mut read = Vec::new();
    loop {
        match soon("a piece", client.response.body_mut().frame()).await {
            None => return (String::from_utf8(read).unwrap(), true),
            Some(Ok(frame)) => read.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Some(Err(_)) => return (String::from_utf8(read).unwrap(), false),
        }
    }
}

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

#[tokio::test]
async fn chunks_of_any_shape_arrive() {
    for pieces in [
        // All at once, after an interim answer, with an extension and a trailer.
        &[
            "HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n6;a=b\r\ndata: \r\n3\r\n{}\n\r\n1\r\n\n\r\n0\r\nX: y\r\n\r\n",
        ][..],
        // Cut in the head, in a size, in the data and in a line end.
        &[
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-",
            "stream\r\nTransfer-Encoding: chunked\r\n\r",
            "\n",
            "0000",
            "a\r",
            "\ndata",
            ": {}\n\n\r",
            "\n0\r\n",
            "\r\n",
        ],
    ] {
        let proxy = before(pieces, false).await;
        let client = get(proxy.address, "/mcp", &[]).await;
        assert_eq!(client.header("content-type"), Some("text/event-stream"));
        assert_eq!(
            read(client).await,
            ("data: {}\n\n".to_owned(), true),
            "{pieces:?}"
        );
        assert_eq!(proxy.counters.snapshot().client_gone, 0);
    }
}

#[tokio::test]
async fn a_stream_that_is_cut_does_not_look_whole() {
    for pieces in [
        &[HEAD, "a\r\ndata: {}\n\n\r\n"][..],
        &[HEAD, "a\r\ndata"],
        &[HEAD, "a\r\ndata: {}\n\n\r\n0\r\n"],
    ] {
        let proxy = before(pieces, true).await;
        let (text, ends) = read(get(proxy.address, "/mcp", &[]).await).await;
        assert!("data: {}\n\n".starts_with(&text) && !ends, "{pieces:?}: {text:?}");
    }
    let proxy = before(&[HEAD, "a\r\ndata: {}\n\n", "x"], false).await;
    assert!(
        !read(get(proxy.address, "/mcp", &[]).await).await.1,
        "not a chunk"
    );
}

#[tokio::test]
async fn answers_of_other_shapes_are_read_as_before() {
    for pieces in [
        &["HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 10\r\n\r\ndata: {}\n\n"][..],
        &[
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
            "data: {}\n\n",
        ],
        &["HTTP/1.1 200 OK\nContent-Length: 10\n\n", "data: ", "{}\n\n"],
        &[
            "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\na\r\ndata: ",
            "{}\n\n\r\n0\r\n\r\n",
        ],
    ] {
        let proxy = before(pieces, true).await;
        let seen = read(get(proxy.address, "/mcp", &[]).await).await;
        assert_eq!(seen, ("data: {}\n\n".to_owned(), true), "{pieces:?}");
    }
}
