//! Who is measured: the server itself, nginx if it is installed, and the proxy.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    process: Option<Child>,
}

impl Drop for Contestant {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Contestant {
    /// Memory of its process.
    pub(crate) fn rss_kib(&self) -> usize {
        let Some(process) = &self.process else { return 0 };
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

/// One thread each for the proxies.
pub(crate) async fn all(server: SocketAddr, directory: &Path, other: Option<&Path>) -> Vec<Contestant> {
    let mut all = vec![Contestant {
        name: "direct",
        address: server,
        process: None,
    }];
    match nginx(server, directory) {
        Some(nginx) => all.push(nginx),
        None => println!("nginx is not installed: its column is left out"),
    }
    if let Some(other) = other {
        all.push(proxy("the other build", other, server));
    }
    all.push(proxy(
        "mcp-proxy",
        Path::new(env!("CARGO_BIN_EXE_mcp-proxy")),
        server,
    ));
    for contestant in &all {
        while TcpStream::connect(contestant.address).is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    all
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn proxy(name: &'static str, program: &Path, server: SocketAddr) -> Contestant {
    let address = free_address();
    let process = Command::new(program)
        .args([
            "--threads",
            "1",
            "--backend",
            &format!("http://{server}"),
            "--listen",
            &address.to_string(),
        ])
        .env("RUST_LOG", "warn")
        .spawn()
        .unwrap();
    Contestant {
        name,
        address,
        process: Some(process),
    }
}

/// With one worker, keep-alive to both sides, and nothing held back.
fn nginx(server: SocketAddr, directory: &Path) -> Option<Contestant> {
    let address = free_address();
    let here = directory.display();
    let configuration = format!(
        "
        daemon off; master_process off; worker_processes 1; pid {here}/pid; error_log {here}/error.log;
        events {{ worker_connections 10000; }}
        http {{
            access_log off; tcp_nodelay on; keepalive_requests 100000000; client_max_body_size 16m;
            client_body_temp_path {here}/a; proxy_temp_path {here}/b; fastcgi_temp_path {here}/c;
            uwsgi_temp_path {here}/d; scgi_temp_path {here}/e;
            upstream server {{ server {server}; keepalive 256; keepalive_requests 100000000; }}
            server {{
                listen {address};
                location / {{
                    proxy_pass http://server; proxy_http_version 1.1; proxy_set_header Connection \"\";
                    proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Forwarded-Host $host;
                    proxy_set_header X-Forwarded-Proto $scheme;
                    proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 1h;
                }}
            }}
        }}"
    );
    let file = directory.join("nginx.conf");
    std::fs::write(&file, configuration).unwrap();
    let process = ["nginx", "/usr/sbin/nginx"].into_iter().find_map(|program| {
        Command::new(program)
            .arg("-p")
            .arg(directory)
            .arg("-c")
            .arg(&file)
            .stderr(Stdio::null())
            .spawn()
            .ok()
    })?;
    Some(Contestant {
        name: "nginx",
        address,
        process: Some(process),
    })
}
