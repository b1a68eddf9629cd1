// The matrix server in Go: a goroutine for each connection, which is how one writes it.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
)

const maximumOrder = 64

// serve answers the requests of one connection until it ends or makes no sense.
func serve(connection net.Conn) {
	defer connection.Close()
	reader := bufio.NewReaderSize(connection, 4096)
	var header [8]byte
	var message, answer []byte
	var words, product []uint32
	for {
		if _, err := io.ReadFull(reader, header[:]); err != nil {
			return
		}
		order := int(binary.LittleEndian.Uint32(header[:]))
		if order < 1 || order > maximumOrder {
			return
		}
		elements := order * order
		if len(words) < 2*elements {
			message = make([]byte, 8*elements)
			answer = make([]byte, 8+4*elements)
			words = make([]uint32, 2*elements)
			product = make([]uint32, elements)
		}
		if _, err := io.ReadFull(reader, message[:8*elements]); err != nil {
			return
		}
		for index := range words[:2*elements] {
			words[index] = binary.LittleEndian.Uint32(message[4*index:])
		}
		left, right := words[:elements], words[elements:2*elements]
		for row := 0; row < order; row++ {
			sums := product[row*order : (row+1)*order]
			clear(sums)
			for middle, factor := range left[row*order : (row+1)*order] {
				line := right[middle*order : (middle+1)*order]
				line = line[:len(sums)]
				for column := range sums {
					sums[column] += factor * line[column]
				}
			}
		}
		copy(answer, header[:])
		for index, value := range product[:elements] {
			binary.LittleEndian.PutUint32(answer[8+4*index:], value)
		}
		if _, err := connection.Write(answer[:8+4*elements]); err != nil {
			return
		}
	}
}

func main() {
	listener, err := net.Listen("tcp4", ":"+os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		go serve(connection)
	}
}
