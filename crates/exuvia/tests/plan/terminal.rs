//! A terminal of a given size for the binary to write to, and what it shows there.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The binary at a terminal.
pub(crate) struct AtTerminal {
    pub(crate) child: Child,
    written: Arc<Mutex<Vec<u8>>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl AtTerminal {
    pub(crate) fn start(kubeconfig: PathBuf, columns: u16, rows: u16, args: &[&str]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, size).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = || -> Stdio {
            let file = File::options().read(true).write(true).open(&path).unwrap();
            OwnedFd::from(file).into()
        };
        let child = Command::new(env!("CARGO_BIN_EXE_exuvia"))
            .args(args)
            .env("KUBECONFIG", kubeconfig)
            .env_remove("COLUMNS")
            .stdin(Stdio::null())
            .stdout(slave())
            .stderr(slave())
            .spawn()
            .unwrap();
        let written: Arc<Mutex<Vec<u8>>> = Arc::default();
        let to = Arc::clone(&written);
        let mut master = File::from(master);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // The last writer has gone: EIO.
            while let Ok(read) = master.read(&mut buffer) {
                if read == 0 {
                    break;
                }
                to.lock().unwrap().extend_from_slice(&buffer[..read]);
            }
        });
        Self {
            child,
            written,
            reader: Some(reader),
        }
    }

    /// Everything that came until now, escape codes and all.
    pub(crate) fn raw(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).replace("\r\n", "\n")
    }

    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        exuvia_testenv::until(what, async || {
            let raw = self.raw();
            if is_so(&raw) { Ok(raw) } else { Err(raw) }
        })
        .await
    }

    /// Waits for its end: the exit code, and all that came.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        let reader = self.reader.take().unwrap();
        reader.join().unwrap();
        let raw = String::from_utf8_lossy(&self.written.lock().unwrap()).replace("\r\n", "\n");
        (status.code(), raw)
    }
}

impl Drop for AtTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it has ended already, unless the test failed
        let _ = self.child.wait();
    }
}

/// What is left on the screen of lines that spinners drew over, without escape codes.
pub(crate) fn without_codes(raw: &str) -> String {
    let mut text = String::new();
    let mut rest = raw.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' => {
                if rest.next_if_eq(&'[').is_some() {
                    while rest.next_if(|c| !c.is_ascii_alphabetic()).is_some() {}
                }
                rest.next();
            }
            '\r' => {
                let line = text.rfind('\n').map_or(0, |at| at + 1);
                text.truncate(line);
            }
            c => text.push(c),
        }
    }
    text
}
