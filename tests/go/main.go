// An exercise of Go for unmodified programs: goroutines, channels, time, files, processes, signals, interfaces and
// servers, with a heap that is collected meanwhile. Each step prints a line that is the same on every system.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

func check(err error) {
	if err != nil {
		fmt.Println("fails:", err)
		os.Exit(1)
	}
}

func main() {
	goroutines()
	memory()
	timers()
	files()
	processes()
	signals()
	interfaces()
	sockets()
	queues()
	web()
	fmt.Println("all done")
}

func goroutines() {
	var wait sync.WaitGroup
	var lock sync.Mutex
	var sum, count int64
	for i := 0; i < 5000; i++ {
		wait.Add(1)
		go func(number int64) {
			defer wait.Done()
			runtime.Gosched()
			lock.Lock()
			sum += number
			lock.Unlock()
			atomic.AddInt64(&count, 1)
		}(int64(i))
	}
	wait.Wait()
	fmt.Println("goroutines:", count, sum)
	// A ring of channels, around which a number goes.
	first := make(chan int)
	in := first
	for i := 0; i < 1000; i++ {
		out := make(chan int)
		go func(in, out chan int) {
			for number := range in {
				out <- number + 1
			}
			close(out)
		}(in, out)
		in = out
	}
	total := 0
	for round := 0; round < 20; round++ {
		go func() { first <- round }()
		total += <-in
	}
	close(first)
	_, open := <-in
	fmt.Println("ring:", total, open)
	// A loop without calls is preempted by a signal.
	var stop atomic.Bool
	before := runtime.GOMAXPROCS(1)
	go func() {
		for !stop.Load() {
		}
	}()
	time.Sleep(20 * time.Millisecond)
	stop.Store(true)
	runtime.GOMAXPROCS(before)
	fmt.Println("preempted")
}

type node struct {
	less, more *node
	key        int
}

func (n *node) insert(key int) *node {
	switch {
	case n == nil:
		return &node{key: key}
	case key < n.key:
		n.less = n.less.insert(key)
	case key > n.key:
		n.more = n.more.insert(key)
	}
	return n
}

func (n *node) count() int {
	if n == nil {
		return 0
	}
	return n.less.count() + 1 + n.more.count()
}

func memory() {
	sizes := make(chan int)
	for worker := 0; worker < 4; worker++ {
		go func(seed int) {
			size := 0
			for round := 0; round < 10; round++ {
				var tree *node
				for i, key := 0, seed; i < 2000; i++ {
					key = (key*1103515245 + 12345) & 0x7fffffff
					tree = tree.insert(key)
				}
				size += tree.count()
			}
			sizes <- size
		}(worker + 1)
	}
	total := 0
	for worker := 0; worker < 4; worker++ {
		total += <-sizes
	}
	runtime.GC()
	var statistics runtime.MemStats
	runtime.ReadMemStats(&statistics)
	fmt.Println("memory:", total, statistics.NumGC > 0, statistics.HeapAlloc < 64<<20)
}

func timers() {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	<-ctx.Done()
	fmt.Println("timeout:", ctx.Err(), time.Since(begin) >= 20*time.Millisecond)
	ticker := time.NewTicker(2 * time.Millisecond)
	for i := 0; i < 10; i++ {
		<-ticker.C
	}
	ticker.Stop()
	select {
	case <-time.After(time.Hour):
		fmt.Println("late")
	case <-time.After(time.Millisecond):
		fmt.Println("early")
	}
}

func files() {
	check(os.MkdirAll("go/below", 0o755))
	path := filepath.Join("go", "below", "file")
	check(os.WriteFile(path, bytes.Repeat([]byte("line\n"), 10000), 0o640))
	file, err := os.OpenFile(path, os.O_APPEND|os.O_RDWR, 0)
	check(err)
	_, err = file.WriteString("last")
	check(err)
	check(file.Sync())
	_, err = file.Seek(0, io.SeekStart)
	check(err)
	scanner, lines := bufio.NewScanner(file), 0
	for scanner.Scan() {
		lines++
	}
	check(file.Close())
	status, err := os.Stat(path)
	check(err)
	check(os.Symlink("below/file", "go/link"))
	content, err := os.ReadFile("go/link")
	check(err)
	fmt.Printf("file: %d lines, %v, %d bytes, %x\n", lines, status.Mode(), len(content), sha256.Sum256(content))
	_, err = os.Open("go/none")
	fmt.Println("missing:", errors.Is(err, os.ErrNotExist))
	names := []string{}
	check(filepath.Walk("go", func(path string, _ os.FileInfo, err error) error {
		names = append(names, path)
		return err
	}))
	fmt.Println("walk:", strings.Join(names, " "))
	check(os.RemoveAll("go"))
}

func processes() {
	output, err := exec.Command("/bin/sh", "-c", "echo child; exit 3").CombinedOutput()
	fmt.Printf("shell: %q, %v\n", output, err)
	sort := exec.Command("sort", "-n")
	sort.Stdin = strings.NewReader("10\n9\n8\n")
	output, err = sort.Output()
	check(err)
	fmt.Printf("sort: %q\n", output)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	fmt.Println("sleep:", exec.CommandContext(ctx, "sleep", "1000").Run())
	var wait sync.WaitGroup
	var fine int32
	for i := 0; i < 12; i++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			if exec.Command("true").Run() == nil {
				atomic.AddInt32(&fine, 1)
			}
		}()
	}
	wait.Wait()
	fmt.Println("processes:", fine)
}

func signals() {
	received := make(chan os.Signal, 1)
	signal.Notify(received, syscall.SIGUSR1)
	check(syscall.Kill(os.Getpid(), syscall.SIGUSR1))
	fmt.Println("signal:", <-received)
	signal.Ignore(syscall.SIGUSR1)
	check(syscall.Kill(os.Getpid(), syscall.SIGUSR1))
	func() {
		defer func() { fmt.Println("fault:", recover()) }()
		var nothing *node
		nothing.key = 1
	}()
}

func interfaces() {
	list, err := net.Interfaces()
	check(err)
	for _, one := range list {
		if one.Name != "lo" && one.Name != "eth0" {
			continue
		}
		groups, err := one.MulticastAddrs()
		check(err)
		all := 0
		for _, group := range groups {
			if group.String() == "224.0.0.1" || group.String() == "ff02::1" {
				all++
			}
		}
		fmt.Println("interface:", one.Index, one.Name, one.MTU, one.Flags&net.FlagUp != 0, all)
	}
	hosts, err := net.LookupHost("localhost")
	check(err)
	fmt.Println("localhost:", len(hosts) > 0)
}

func echo(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer connection.Close()
			_, _ = io.Copy(connection, connection)
		}()
	}
}

func sockets() {
	for _, kind := range [][2]string{{"tcp", "localhost:0"}, {"unix", "socket"}} {
		listener, err := net.Listen(kind[0], kind[1])
		check(err)
		go echo(listener)
		var wait sync.WaitGroup
		var fine int32
		for client := 0; client < 50; client++ {
			wait.Add(1)
			go func(client int) {
				defer wait.Done()
				connection, err := net.Dial(kind[0], listener.Addr().String())
				check(err)
				defer connection.Close()
				check(connection.SetDeadline(time.Now().Add(time.Minute)))
				sent := bytes.Repeat([]byte{byte(client)}, 20000)
				go func() { _, _ = connection.Write(sent) }()
				received := make([]byte, len(sent))
				_, err = io.ReadFull(connection, received)
				check(err)
				if bytes.Equal(sent, received) {
					atomic.AddInt32(&fine, 1)
				}
			}(client)
		}
		wait.Wait()
		check(listener.Close())
		fmt.Println(kind[0]+":", fine)
	}
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	check(err)
	check(socket.SetReadDeadline(time.Now().Add(30 * time.Millisecond)))
	_, _, err = socket.ReadFrom(make([]byte, 10))
	fmt.Println("udp:", err.(net.Error).Timeout())
	_, err = net.Dial("tcp", "127.0.0.1:1")
	fmt.Println("refused:", errors.Is(err, syscall.ECONNREFUSED))
}

// Queues of messages, for which Go has no package.
func queues() {
	name := []byte("exercise\x00")
	attributes := [8]int64{0, 2, 64}
	call := func(number uintptr, arguments ...uintptr) uintptr {
		var all [6]uintptr
		copy(all[:], arguments)
		result, _, wrong := syscall.Syscall6(number, all[0], all[1], all[2], all[3], all[4], all[5])
		if wrong != 0 {
			check(wrong)
		}
		return result
	}
	flags := uintptr(syscall.O_CREAT | syscall.O_RDWR)
	queue := call(syscall.SYS_MQ_OPEN, uintptr(unsafe.Pointer(&name[0])), flags, 0o600, uintptr(unsafe.Pointer(&attributes[0])))
	call(syscall.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(&name[0])))
	go func() {
		for number := 0; number < 100; number++ {
			text := []byte(fmt.Sprintf("message %d", number))
			call(syscall.SYS_MQ_TIMEDSEND, queue, uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)), uintptr(number%2))
		}
	}()
	bytes, sum := 0, uint32(0)
	for number := 0; number < 100; number++ {
		var text [64]byte
		var priority uint32
		received := call(syscall.SYS_MQ_TIMEDRECEIVE, queue, uintptr(unsafe.Pointer(&text[0])), 64, uintptr(unsafe.Pointer(&priority)))
		bytes += int(received)
		sum += priority
	}
	fmt.Println("queue:", bytes, sum)
	check(syscall.Close(int(queue)))
}

func web() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	server := &http.Server{Handler: http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		check(err)
		fmt.Fprintf(answer, "%s %s %d", request.Method, request.URL.Path, len(body))
	})}
	go func() { _ = server.Serve(listener) }()
	address := "http://" + listener.Addr().String()
	var wait sync.WaitGroup
	var fine int32
	for client := 0; client < 20; client++ {
		wait.Add(1)
		go func(client int) {
			defer wait.Done()
			path := fmt.Sprintf("/%d", client)
			answer, err := http.Post(address+path, "text/plain", bytes.NewReader(make([]byte, client*1000)))
			check(err)
			body, err := io.ReadAll(answer.Body)
			check(err)
			answer.Body.Close()
			if string(body) == fmt.Sprintf("POST %s %d", path, client*1000) {
				atomic.AddInt32(&fine, 1)
			}
		}(client)
	}
	wait.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	check(server.Shutdown(ctx))
	fmt.Println("http:", fine)
}
