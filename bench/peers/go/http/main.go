// A server of one file with Go's net/http, which is how one writes it.
package main

import (
	"fmt"
	"net/http"
	"os"
)

func main() {
	content, err := os.ReadFile(os.Args[2])
	if err == nil {
		http.HandleFunc("/file", func(writer http.ResponseWriter, _ *http.Request) {
			writer.Header().Set("Content-Type", "text/plain")
			writer.Write(content)
		})
		err = http.ListenAndServe(":"+os.Args[1], nil)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
