//! Load from within the machine: requests one after the other on each of many connections.

use std::time::Instant;

use cops::io::BufReader;
use cops::net::TcpStream;

const REQUEST: &[u8] = b"GET /hello HTTP/1.1\r\nHost: cops\r\n\r\n";
const BODY: &[u8] = b"you asked for /hello\n";

/// Longest line of an answer.
const LONGEST_LINE: usize = 1024;

/// Sends so many requests on each connection; returns the mean time of a request in nanoseconds, of all connections
/// together.
pub async fn load(port: u16, requests: u32, connections: u32) -> Result<u64, String> {
    let start = Instant::now();
    let clients: Vec<_> = (0..connections).map(|_| cops::spawn(requests_on_one(port, requests))).collect();
    for client in clients {
        client.await.map_err(|_| "a client was cancelled")??;
    }
    let ns = start.elapsed().as_nanos() / (u128::from(requests) * u128::from(connections));
    Ok(u64::try_from(ns).unwrap_or(u64::MAX))
}

async fn requests_on_one(port: u16, requests: u32) -> Result<(), String> {
    let stream =
        TcpStream::connect(([127, 0, 0, 1], port)).await.map_err(|error| format!("cannot connect: {error}"))?;
    stream.send_small_writes_at_once().map_err(|error| error.to_string())?;
    let mut answers = BufReader::with_capacity(1024, &stream).with_limit(LONGEST_LINE);
    let mut request = REQUEST.to_vec();
    for number in 1..=requests {
        let failed = |what: &str| format!("request {number}: {what}");
        let (result, buffer) = stream.write_all(request).await;
        request = buffer;
        result.map_err(|error| failed(&error.to_string()))?;
        let body = read_answer(&mut answers).await.map_err(|error| failed(&error))?;
        if body != BODY {
            return Err(failed("the answer is another one's"));
        }
    }
    Ok(())
}

/// Reads an answer, and returns its body.
async fn read_answer(answers: &mut BufReader<&TcpStream>) -> Result<Vec<u8>, String> {
    let (mut is_first, mut length) = (true, None);
    loop {
        let mut line = String::new();
        if answers.read_line(&mut line).await.map_err(|error| error.to_string())? == 0 {
            return Err("the server has ended the connection".into());
        }
        let line = line.trim_end();
        if is_first && line != "HTTP/1.1 200 OK" {
            return Err(format!("the answer begins with {line:?}"));
        }
        is_first = false;
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse::<usize>().ok().filter(|length| *length <= LONGEST_LINE);
        }
    }
    let mut body = vec![0; length.ok_or("the answer has no length")?];
    answers.read_exact(&mut body).await.map_err(|error| error.to_string())?;
    Ok(body)
}
