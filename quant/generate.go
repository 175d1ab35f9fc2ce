package quant

//go:generate sh -c "cd _generate && go run . -out ../asm_amd64.s -stubs ../asm_amd64.go -pkg quant"
