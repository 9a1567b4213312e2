//! The server's clock: what the server stamped is compared with what its own clock says now, never with ours.

use std::time::{Duration, Instant};

use k8s_openapi::jiff::fmt::rfc2822::DateTimeParser;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::client::Body;

/// A clock that is asked for seldom and counted on from there.
const TRUSTED_FOR: Duration = Duration::from_secs(60);

/// The API server's clock, as its `Date` header tells: how far it is ahead of ours.
///
/// Times that a server has written (`renewTime`, `creationTimestamp`, entries of managedFields) are compared with it.
///
/// ```no_run
/// # async fn example(client: kube::Client, renewed: k8s_openapi::jiff::Timestamp) {
/// use exuvia_runtime::ServerClock;
///
/// let mut clock = ServerClock::default();
/// clock.ask(&client).await;
/// println!("renewed {} s ago", clock.since(renewed).as_secs());
/// # }
/// ```
#[derive(Debug, Default)]
pub struct ServerClock {
    ahead: SignedDuration,
    heard: Option<Instant>,
}

impl ServerClock {
    /// Asks the server, unless it was asked a moment ago. Any answer has a date, a refusal as well; without one the last
    /// stands, and at first our own clock.
    pub async fn ask(&mut self, client: &Client) {
        if self.heard.is_some_and(|heard| heard.elapsed() < TRUSTED_FOR) {
            return;
        }
        if let Some(date) = date_of(client).await {
            self.ahead = date.duration_since(Timestamp::now());
            self.heard = Some(Instant::now());
        }
    }

    /// Now, by the server's clock. It tells whole seconds, so this may be late by one.
    pub fn now(&self) -> Timestamp {
        Timestamp::now() + self.ahead
    }

    /// How long ago that was; nothing if it is yet to come.
    pub fn since(&self, then: Timestamp) -> Duration {
        Duration::try_from(self.now().duration_since(then)).unwrap_or_default()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "it only reads: GET /version, for its Date header"
)]
async fn date_of(client: &Client) -> Option<Timestamp> {
    let request = http::Request::get("/version").body(Body::empty()).ok()?;
    let response = client.send(request).await.ok()?;
    let date = response.headers().get(http::header::DATE)?.to_str().ok()?;
    parse(date)
}

fn parse(date: &str) -> Option<Timestamp> {
    DateTimeParser::new().parse_timestamp(date).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_header_is_understood() {
        let date = parse("Mon, 16 Nov 2026 14:03:12 GMT");
        assert_eq!(
            date.map(|date| date.to_string()).as_deref(),
            Some("2026-11-16T14:03:12Z")
        );
        assert_eq!(parse("yesterday"), None);
    }

    #[test]
    fn what_the_server_stamped_is_measured_by_its_own_clock() {
        let hour = SignedDuration::from_hours(1);
        let clock = ServerClock {
            ahead: -hour,
            heard: None,
        };
        let stamped = Timestamp::now() - hour;
        assert!(clock.since(stamped) < Duration::from_secs(60));
        assert_eq!(clock.since(Timestamp::now()), Duration::ZERO, "yet to come");
    }
}
